"""Connect one log and its results folder."""

from __future__ import annotations

import hashlib
import shlex
from functools import cached_property

from cowclip_merlin.experiments.definitions import LogExperiment
from cowclip_merlin.experiments.online.settings import LogSettings
from cowclip_merlin.experiments.session import ResultsSession
from cowclip_merlin.online.events.features_file import load_features
from cowclip_merlin.system.checksums import checksum
from cowclip_merlin.system.folders import REPLAYS_CSV


class LogSession(ResultsSession):
    """One log and its results folder.

    Attributes:
        settings: from the command line.
        features: columns of the log.

    Raises:
        InputError: if the features file is missing or wrong, or the results folder is a folder of
            something else.
    """

    results_file = REPLAYS_CSV

    def __init__(self, settings: LogSettings) -> None:
        super().__init__(settings.out)
        self.settings = settings
        self.features = load_features(settings.features)

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of the contents of the log's files."""
        sums = [checksum(path) for path in self.settings.files]
        return hashlib.sha256(" ".join(sums).encode()).hexdigest()[:12]

    @property
    def data_name(self) -> str:
        """Name of the log for readers."""
        return self.settings.name or self.settings.files[0].name

    def describe_data(self, events: str = "") -> str:
        """Describe the log and the model in one line.

        Args:
            events: number of events, for readers; empty before a run has counted them.
        """
        run = self.settings.model.run
        widths = "-".join(map(str, run.mlp))
        parts = [f"{self.data_name}: {events}"] if events else [self.data_name]
        days = self.settings.batch_days
        first = f"first {days:g} day{'s' * (days != 1)} only trained"
        return "; ".join([*parts, first, f"{run.model}, MLP {widths}, batch {run.batch_size:,}"])

    def command(self, experiment: LogExperiment) -> str:
        """Return the command that repeats this; LOG, FEATURES and RESULTS stand for paths."""
        words = ["cowclip", "experiment", experiment.cli_name]
        words += ["--log", "LOG", "--features", "FEATURES", "--out", "RESULTS"]
        return shlex.join([*words, *self.settings.options])
