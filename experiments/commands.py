"""Run `cowclip experiment` and `cowclip sweep`: list or make missing runs, show results."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cowclip_merlin.experiments.definitions import Experiment, LogExperiment
from cowclip_merlin.experiments.figures.from_results import GRADIENT_STEP
from cowclip_merlin.experiments.kinds import RUNS, WRITERS
from cowclip_merlin.experiments.runs import Run, Runs
from cowclip_merlin.experiments.session import ResultsSession, Session
from cowclip_merlin.system.files import check_writable
from cowclip_merlin.system.folders import lock_folder

if TYPE_CHECKING:
    from cowclip_merlin.experiments.online.session import LogSession

FOLDER_IS_USED = (
    "another experiment or sweep uses this folder; wait until it ends, or use another `out`"
)


def dry_run(session: ResultsSession, experiment: Experiment | LogExperiment) -> str:
    """List the missing runs and estimate their time; train only a few steps."""
    if experiment.kind == "gradients":
        (run,) = session.runs(experiment)[:1]
        return f"{experiment.title}\none training of {run.label}, up to {GRADIENT_STEP} steps"
    runs = _runs_of(session, experiment)
    pending = runs.pending() if runs else ()
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
        runs = _runs_of(session, experiment)
        if runs:
            runs.begin()
            while pending := runs.pending():  # a sweep may add points after each result
                _make(runs, pending)
        return "\n".join(WRITERS[experiment.kind](session, experiment))


def _runs_of(
    session: Session | LogSession, experiment: Experiment | LogExperiment
) -> Runs[Any, Any, Any] | None:
    """Return the runs of an experiment; None if its kind needs none."""
    return RUNS[experiment.kind](session, experiment) if experiment.kind in RUNS else None


def _make(runs: Runs[Any, Any, Run], pending: Sequence[Run]) -> None:
    """Make runs one after the other, and print a line for each."""
    total, started = len(pending), time.perf_counter()
    for number, run in enumerate(pending, 1):
        told = runs.make(run)
        rest = (time.perf_counter() - started) / number * (total - number)
        print(f"[{number}/{total}] {told}; {duration(rest)} left", flush=True)


def duration(seconds: float) -> str:
    """Format seconds in a suitable unit.

    >>> duration(50), duration(600), duration(9000)
    ('50 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
