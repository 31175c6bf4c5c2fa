"""Run `cowclip experiment` and `cowclip sweep`: plan, train missing runs, show results."""

from __future__ import annotations

import time

from cowclip_merlin.experiments.definitions import RUN_KINDS, Experiment
from cowclip_merlin.experiments.figures.from_results import GRADIENT_STEP
from cowclip_merlin.experiments.outputs import write_outputs
from cowclip_merlin.experiments.results.result import Result
from cowclip_merlin.experiments.running.estimate import estimate_seconds
from cowclip_merlin.experiments.running.runner import remove_left_checkpoints, train_runs
from cowclip_merlin.experiments.session import Session
from cowclip_merlin.system.files import check_writable
from cowclip_merlin.system.folders import RESULTS_CSV, lock_folder

FOLDER_IS_USED = (
    "another experiment or sweep uses this folder; wait until it ends, or use another `out`"
)


def dry_run(session: Session, experiment: Experiment) -> str:
    """List the missing runs and estimate their time; train only a few steps."""
    if experiment.kind == "gradients":
        (run,) = session.runs(experiment)[:1]
        return f"{experiment.title}\none training of {run.label}, up to {GRADIENT_STEP} steps"
    pending = session.pending_runs(experiment)
    if not pending:
        return f"{experiment.title}\nno run is missing"
    fingerprint = session.context.fingerprint
    names = [f"  {run.run_id(fingerprint)}  {run.label}" for run in pending]
    seconds = estimate_seconds(pending, session.context.data)
    head = [experiment.title, session.sizing(experiment).describe(), ""]
    more = ", then the neighbors of the best" if experiment.kind == "sweep" else ""
    return "\n".join([*head, *names, "", f"{len(pending)} runs, about {duration(seconds)}{more}"])


def run_experiment(session: Session, experiment: Experiment) -> str:
    """Train the missing runs, write the table or figure, and return its text.

    Prints a line for each run as it ends.
    """
    with lock_folder(session.settings.out, FOLDER_IS_USED):
        check_writable(session.settings.out / RESULTS_CSV, overwrite=True)
        if experiment.kind in (*RUN_KINDS, "sweep"):
            _train(session, experiment)
        return "\n".join(write_outputs(session, experiment))


def _train(session: Session, experiment: Experiment) -> None:
    print(session.sizing(experiment).describe())
    remove_left_checkpoints(session.context.out)
    while pending := session.pending_runs(experiment):  # a sweep may add points after each result
        total, started = len(pending), time.perf_counter()
        for number, result in enumerate(train_runs(pending, session.context), 1):
            rest = (time.perf_counter() - started) / number * (total - number)
            text = f"[{number}/{total}] {_progress(result)}; {duration(rest)} left"
            print(text, flush=True)


def _progress(result: Result) -> str:
    if result.status != "done":
        return f"{result.run_id}: {result.status}"
    return (
        f"{result.run_id}: {result.split} AUC {100 * result.auc:.2f}%, log loss "
        f"{result.log_loss:.4f}, {result.seconds:.0f} s, {result.rows_per_second:,.0f} rows/s"
    )


def duration(seconds: float) -> str:
    """Format seconds in a suitable unit.

    >>> duration(50), duration(600), duration(9000)
    ('50 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
