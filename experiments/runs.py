"""What experiments on data and on a log share: a results folder, and how runs are made."""

from __future__ import annotations

import io
import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, ClassVar

from cowclip_merlin import compat
from cowclip_merlin.experiments.results import check_outputs_replaceable, check_results_folder
from cowclip_merlin.scaling import Hyperparameters
from cowclip_merlin.settings import Settings, options_of, words_of
from cowclip_merlin.system.console import note
from cowclip_merlin.system.files import check_writable
from cowclip_merlin.system.folders import lock_folder
from cowclip_merlin.system.machine import PACKAGES, versions
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.types import Json, JsonObject

NO_FIGURE = "no figure: every run diverged"
FOLDER_IS_USED = (
    "another experiment or sweep uses this folder; wait until it ends, or use another `out`"
)


class ResultsSession:
    """A results folder, and the data set or log of a subclass.

    A subclass has `describe_data()` in one line, `command(experiment)` that repeats it, with words
    for its paths, and `runs(experiment)`.

    Raises:
        InputError: if the results folder is a folder of something else.
    """

    results_file: ClassVar[str]  # table of the finished runs
    fingerprint: str  # of the data or log
    describe_data: Callable[[], str]
    command: Callable[[Any], str]
    runs: Callable[[Any], Runs]

    def __init__(self, out: Path) -> None:
        check_results_folder(out)
        self.out = out

    def texts(self, experiment: Any) -> dict[str, str]:
        """Return the attributes of a table or figure that say where its numbers come from."""
        return {
            "data": self.describe_data(),
            "command": self.command(experiment),
            "fingerprint": self.fingerprint,
        }


class Runs:
    """The runs of one experiment: plan, leave out the done, make, and write the outputs.

    A subclass tells what is missing (`pending`), describes it (`describe`, `name`, `seconds`: None
    if only the first run can tell), and makes a run, or continues one that a signal stopped: `make`
    records it and says what it gave. What a run continues from goes only after it is recorded.
    `write` writes the tables and figures, and yields the text to print.
    """

    then = ""  # what follows the missing runs, for a dry run
    pending: Callable[[], Sequence[Any]]
    describe: Callable[[], str]
    name: Callable[[Any], str]
    seconds: Callable[[Sequence[Any]], float | None]
    make: Callable[[Any], str]
    write: Callable[[], Iterator[str]]

    def __init__(self, session: Any, experiment: Any) -> None:
        self.session, self.experiment = session, experiment

    def check(self) -> None:
        """Refuse an experiment that cannot run, or that would replace outputs of other data."""
        session, name = self.session, self.experiment.name
        check_outputs_replaceable(session.out, name, session.fingerprint)

    def begin(self) -> None:
        """Prepare the results folder, also if no run is missing."""

    def dry(self) -> str:
        """List the missing runs and estimate their time; train only a few steps."""
        if not (pending := self.pending()):
            return f"{self.experiment.title}\nno run is missing"
        names = [f"  {self.name(run)}" for run in pending]
        seconds = self.seconds(pending)
        about = "the first one tells the time" if seconds is None else f"about {duration(seconds)}"
        count = f"{len(pending)} run{'s' * (len(pending) != 1)}"
        head = [self.experiment.title, self.describe(), ""]
        return "\n".join([*head, *names, "", f"{count}, {about}{self.then}"])

    def run(self) -> str:
        """Make the missing runs, write the table or figure, and return its text.

        Prints a line for each run as it ends. A run that a signal stopped continues at the next
        call.

        Raises:
            InputError: the data or a setting is wrong, or another process uses the results folder.
            Stopped: a signal stops it; all results so far are recorded.
        """
        out = self.session.out
        with lock_folder(out, FOLDER_IS_USED):
            check_writable(out / self.session.results_file, overwrite=True)
            self.begin()
            while pending := self.pending():  # a sweep may add points after each result
                total, started = len(pending), time.perf_counter()
                for number, run in enumerate(pending, 1):
                    told = self.make(run)
                    rest = (time.perf_counter() - started) / number * (total - number)
                    note(f"[{number}/{total}] {told}; {duration(rest)} left")
            return "\n".join(self.write())


def duration(seconds: float) -> str:
    """Format seconds in a suitable unit.

    >>> duration(50), duration(600), duration(9000)
    ('50 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def given_words(settings: Settings, *, without: Collection[str]) -> list[str]:
    """Return the words of the command line for the values that are not the defaults.

    >>> from cowclip_merlin.training import RunSettings
    >>> given_words(RunSettings(model="dcn", batch_size=8, mlp=(4, 2)), without=("overrides",))
    ['--model', 'dcn', '--batch-size', '8', '--mlp', '4,2']
    """
    known = {name: x.default for name, x in options_of(type(settings)).items()}
    given = {name: getattr(settings, name) for name in known if name not in without}
    return words_of(type(settings), {name: x for name, x in given.items() if x != known[name]})


def start_columns() -> JsonObject:
    """Return the columns with the time, and with the running processes in the minute before."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return {"started": now, "load": round(os.getloadavg()[0], 2)}


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
