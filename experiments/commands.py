"""Run `cowclip experiment` and `cowclip sweep`: list or make missing runs, show results."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from cowclip_merlin.experiments.definitions import KINDS, Experiment, LogExperiment
from cowclip_merlin.experiments.on_data.run_figures import GRADIENT_STEP
from cowclip_merlin.experiments.on_data.trainings import TrainingRuns
from cowclip_merlin.experiments.on_logs.collisions import CollisionRuns
from cowclip_merlin.experiments.on_logs.replays import ReplayRuns
from cowclip_merlin.experiments.session import ResultsSession, Runs
from cowclip_merlin.system.files import check_writable
from cowclip_merlin.system.folders import lock_folder

RUNS: Mapping[str, Callable[[Any, Any], Runs]] = {
    **dict.fromkeys(KINDS, TrainingRuns),
    "sync": ReplayRuns,
    "rules": ReplayRuns,
    "collisions": CollisionRuns,
}
"""Kind of experiment -> its runs."""

FOLDER_IS_USED = (
    "another experiment or sweep uses this folder; wait until it ends, or use another `out`"
)


def check_experiment(session: ResultsSession, experiment: Experiment | LogExperiment) -> None:
    """Refuse an experiment that cannot run, or would replace outputs of other data.

    Raises:
        InputError: if it cannot; see `TrainingRuns.check`.
    """
    RUNS[experiment.kind](session, experiment).check()


def dry_run(session: ResultsSession, experiment: Experiment | LogExperiment) -> str:
    """List the missing runs and estimate their time; train only a few steps."""
    runs = RUNS[experiment.kind](session, experiment)
    if experiment.kind == "gradients":
        run = runs.plan()[0]
        return f"{experiment.title}\none training of {run.label}, up to {GRADIENT_STEP} steps"
    pending = runs.pending()
    if not pending:
        return f"{experiment.title}\nno run is missing"
    names = [f"  {runs.name(run)}" for run in pending]
    seconds = runs.seconds(pending)
    about = "the first one tells the time" if seconds is None else f"about {duration(seconds)}"
    count = f"{len(pending)} run{'s' * (len(pending) != 1)}"
    head = [experiment.title, runs.describe(), ""]
    return "\n".join([*head, *names, "", f"{count}, {about}{runs.then}"])


def run_experiment(session: ResultsSession, experiment: Experiment | LogExperiment) -> str:
    """Make the missing runs, write the table or figure, and return its text.

    Prints a line for each run as it ends. A run that a signal stopped continues at the next call.

    Raises:
        InputError: the data or a setting is wrong, or another process uses the results folder.
        Stopped: a signal stops it; all results so far are recorded.
    """
    with lock_folder(session.out, FOLDER_IS_USED):
        check_writable(session.out / session.results_file, overwrite=True)
        runs = RUNS[experiment.kind](session, experiment)
        runs.begin()
        while pending := runs.pending():  # a sweep may add points after each result
            total, started = len(pending), time.perf_counter()
            for number, run in enumerate(pending, 1):
                told = runs.make(run)
                rest = (time.perf_counter() - started) / number * (total - number)
                print(f"[{number}/{total}] {told}; {duration(rest)} left", flush=True)
        return "\n".join(runs.write())


def duration(seconds: float) -> str:
    """Format seconds in a suitable unit.

    >>> duration(50), duration(600), duration(9000)
    ('50 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
