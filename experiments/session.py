"""What experiments on data and on a log share: a results folder, and how runs are made."""

from __future__ import annotations

import io
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, ClassVar

from cowclip_merlin import compat
from cowclip_merlin.experiments.definitions import Experiment, LogExperiment
from cowclip_merlin.experiments.results import check_outputs_replaceable, check_results_folder
from cowclip_merlin.scaling import Hyperparameters
from cowclip_merlin.settings import Settings, options_of, words_of
from cowclip_merlin.system.machine import PACKAGES, versions
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.types import Json, JsonObject

NO_FIGURE = "no figure: every run diverged"


class ResultsSession(ABC):
    """A data set or a log, and a results folder.

    Raises:
        InputError: if the results folder is a folder of something else.
    """

    results_file: ClassVar[str]  # table of the finished runs

    def __init__(self, out: Path) -> None:
        check_results_folder(out)
        self.out = out

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Fingerprint of the data or log."""

    @abstractmethod
    def describe_data(self) -> str:
        """Describe the data and the model in one line."""

    @abstractmethod
    def command(self, experiment: Any) -> str:
        """Return the command that repeats an experiment, with words for its paths."""

    def texts(self, experiment: Experiment | LogExperiment) -> dict[str, str]:
        """Return the attributes of a table or figure that say where its numbers come from."""
        return {
            "data": self.describe_data(),
            "command": self.command(experiment),
            "fingerprint": self.fingerprint,
        }


def given_words(settings: Settings, *, without: Collection[str]) -> list[str]:
    """Return the words of the command line for the values that are not the defaults.

    >>> from cowclip_merlin.training import RunSettings
    >>> given_words(RunSettings(model="dcn", batch_size=8, mlp=(4, 2)), without=("overrides",))
    ['--model', 'dcn', '--batch-size', '8', '--mlp', '4,2']
    """
    known = {name: x.default for name, x in options_of(type(settings)).items()}
    given = {name: getattr(settings, name) for name in known if name not in without}
    return words_of(type(settings), {name: x for name, x in given.items() if x != known[name]})


class Runs(ABC):
    """The runs of one experiment: plan, leave out the done, make, and write the outputs.

    `then` says what follows the missing runs, for a dry run.
    """

    then = ""

    def __init__(self, session: Any, experiment: Any) -> None:
        self.session, self.experiment = session, experiment

    def check(self) -> None:
        """Refuse an experiment that cannot run, or that would replace outputs of other data."""
        session, name = self.session, self.experiment.name
        check_outputs_replaceable(session.out, name, session.fingerprint)

    @abstractmethod
    def describe(self) -> str:
        """Describe the data or the sizes of the runs in one line."""

    @abstractmethod
    def pending(self) -> Sequence[Any]:
        """Return the runs that have no result yet."""

    @abstractmethod
    def name(self, run: Any) -> str:
        """Name a run in one line."""

    @abstractmethod
    def seconds(self, runs: Sequence[Any]) -> float | None:
        """Estimate the time of runs; None if only the first one can tell."""

    def begin(self) -> None:  # noqa: B027
        """Prepare the results folder, also if no run is missing."""

    @abstractmethod
    def make(self, run: Any) -> str:
        """Make a run, or continue one that a signal stopped; record it, and say what it gave.

        What a run continues from goes only after the run is recorded.

        Raises:
            InputError: the data or a setting is wrong.
            Stopped: a signal stops it.
        """

    @abstractmethod
    def write(self) -> Iterator[str]:
        """Write the tables and figures, and yield the text to print."""


def start_columns() -> JsonObject:
    """Return the columns with the time, and with the running processes in the minute before."""
    time = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return {"started": time, "load": round(os.getloadavg()[0], 2)}


def machine_columns(machine: Mapping[str, Json]) -> JsonObject:
    """Return the columns that say where (see `hardware`) and with what a run was made."""
    made_with, shown = versions(), ("python", *PACKAGES)
    return {
        "revision": made_with.get("git_revision", made_with["cowclip_merlin"]),
        "tensorflow": made_with["tensorflow"],
        "hardware": describe_hardware(machine),
        "versions": ", ".join(f"{k} {v}" for k, v in made_with.items() if k in shown),
    }


def describe_hardware(machine: Mapping[str, Json]) -> str:
    """Describe the GPU, or the processor and its cores, from the output of `hardware`.

    >>> cpu = {"gpus": 0, "gpu": "", "cores": 2, "processor": "AMD EPYC", "machine": "x86_64"}
    >>> describe_hardware(cpu)
    '2 CPU cores, AMD EPYC'
    """
    if machine["gpus"]:
        return f"{machine['gpus']} x {machine['gpu'].split(', ')[0]}"
    return f"{machine['cores']} CPU cores, {machine['processor'] or machine['machine']}"


def settings_columns(settings: RunSettings, values: Hyperparameters) -> JsonObject:
    """Return the columns with settings that runs on data and replays of a log share."""
    scaled = ("embedding_lr", "dense_lr", "l2", "r", "zeta", "init_std")
    given = ("model", "rule", "batch_size", "base_batch_size", "seed")
    return {
        **{name: getattr(values, name) for name in scaled},
        **{name: getattr(settings, name) for name in given},
        "mlp": "-".join(map(str, settings.mlp)),
        "clip": settings.effective_clip,
    }


@contextmanager
def quiet_training() -> Iterator[None]:
    """Free earlier models, and hide what a training prints: the log of its run has it.

    TensorFlow warns about tracing many functions, because each run traces its own.
    """
    compat.release_models()
    logger = logging.getLogger("tensorflow")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(before)
