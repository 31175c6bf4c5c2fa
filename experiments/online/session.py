"""Connect one log and its results folder; hashes of its runs."""

from __future__ import annotations

import hashlib
import json
import shlex
from dataclasses import fields, is_dataclass
from functools import cached_property

from cowclip_merlin.experiments.definitions import LogExperiment
from cowclip_merlin.experiments.session import ResultsSession
from cowclip_merlin.experiments.session_settings import LogSettings
from cowclip_merlin.online.events.features import load_features
from cowclip_merlin.online.settings import OnlineSettings
from cowclip_merlin.system.checksums import checksum
from cowclip_merlin.system.folders import REPLAYS_CSV
from cowclip_merlin.training import RunSettings
from cowclip_merlin.types import Json


def hash_settings(settings: OnlineSettings, *parts: Json) -> str:
    """Return a hash that is equal for runs that train the same.

    Settings at their defaults are omitted, so that a new option does not change the names of
    earlier runs.

    Args:
        settings: of the model, with the seed.
        parts: what else the training depends on; dataclasses and plain values.
    """
    usual = OnlineSettings(run=_usual_run()).as_dict()
    given = settings.as_dict()
    table = {k: v for k, v in given.items() if k != "run" and v != usual[k]}
    run = {k: v for k, v in given["run"].items() if v != usual["run"][k]}
    values = [table, run, *(_changed(part) for part in parts)]
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def _usual_run() -> RunSettings:
    return RunSettings(model="deepfm", batch_size=1, update="lazy", epochs=1)


def _changed(value: object) -> Json:
    """Return plain values for JSON, without attributes of dataclasses at their defaults."""
    if isinstance(value, tuple):
        return [_changed(each) for each in value]
    if not is_dataclass(value):
        return value
    usual = {
        field.name: field.default_factory() if callable(field.default_factory) else field.default
        for field in fields(value)
    }
    given = {name: getattr(value, name) for name in usual}
    return {name: _changed(each) for name, each in given.items() if each != usual[name]}


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
