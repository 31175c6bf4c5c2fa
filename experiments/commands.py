"""Run `cowclip experiment` and `cowclip sweep`: check, list or make missing runs, show results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments import outputs
from cowclip_merlin.experiments.definitions import RUN_KINDS, Experiment, LogExperiment
from cowclip_merlin.experiments.figures.from_results import GRADIENT_STEP
from cowclip_merlin.experiments.online.collision_runs import CollisionRuns, write_collisions
from cowclip_merlin.experiments.online.replay_outputs import write_replays
from cowclip_merlin.experiments.online.replay_runs import ReplayRuns
from cowclip_merlin.experiments.planning.plan import PlannedRun, describe_infeasible
from cowclip_merlin.experiments.planning.sweep import VALIDATION_FRACTION
from cowclip_merlin.experiments.results.folder import check_outputs_replaceable
from cowclip_merlin.experiments.runs import Run, Runs, SweepRuns, TrainingRuns
from cowclip_merlin.experiments.session import TRAINING_KINDS, ResultsSession, Session
from cowclip_merlin.system.files import check_writable
from cowclip_merlin.system.folders import lock_folder
from cowclip_merlin.training.build import build_optimizer, choose_device
from cowclip_merlin.workflows.prepared.folder import VALIDATION

if TYPE_CHECKING:
    from cowclip_merlin.experiments.online.session import LogSession


RUNS: Mapping[str, Callable[[Any, Any], Runs[Any, Any, Any]]] = {
    **dict.fromkeys(RUN_KINDS, TrainingRuns),
    "sweep": SweepRuns,
    "sync": ReplayRuns,
    "rules": ReplayRuns,
    "collisions": CollisionRuns,
}
"""Kind of experiment -> its runs; other kinds need none."""

WRITERS: Mapping[str, Callable[[Any, Any], Iterator[str]]] = {
    **outputs.WRITERS,
    "sync": write_replays,
    "rules": write_replays,
    "collisions": write_collisions,
}
"""Kind of experiment -> writes its table and figures, and yields the text to print."""


def check_experiment(session: Session, experiment: Experiment) -> None:
    """Reject an experiment that cannot run with these settings.

    Raises:
        InputError: if the data have too few rows, settings of a line conflict or have no effect,
            a requested line does not exist, or the results folder has the outputs of other data.
    """
    runs = session.runs(experiment)
    if experiment.kind in TRAINING_KINDS:
        _check_batches(session, experiment, runs)
    _check_values_used(experiment, runs)
    _check_settings(session, experiment, runs)
    _check_lines(session, experiment, runs)
    check_outputs_replaceable(session.settings.out, experiment.name, session.fingerprint)


def _check_batches(session: Session, experiment: Experiment, runs: Sequence[PlannedRun]) -> None:
    sweep = experiment.kind == "sweep"
    share = sweep and VALIDATION not in session.context.data.rows
    held_out = VALIDATION_FRACTION if share else 0.0
    infeasible = describe_infeasible(experiment, session.sizing(experiment), held_out)
    if infeasible and (sweep or not runs):  # a sweep compares points at all of its batches
        raise InputError(
            f"{experiment.cli_name}: {infeasible[0]}; use more rows, or smaller multipliers"
        )


def _check_settings(session: Session, experiment: Experiment, runs: Sequence[PlannedRun]) -> None:
    """Build each run's optimizer, which rejects conflicting settings."""
    data = session.context.data
    if runs:  # building an optimizer initializes TensorFlow on its GPUs
        choose_device(session.settings.device)
    for run in runs:
        values = run.settings.hyperparameters(data.kind)
        try:
            build_optimizer(run.settings, values, data, steps=1)
        except InputError as error:
            raise InputError(f"{experiment.cli_name}, {run.label}: {error}") from None


def _check_values_used(experiment: Experiment, runs: Sequence[PlannedRun]) -> None:
    """Refuse values of the experiment's file that the clip of their run does not use."""
    given = {line.label: (*line.overrides, *line.factors) for line in experiment.lines}
    swept = (*experiment.grid, *experiment.grid_factors)
    for run in runs:
        unused = run.settings.unused_overrides()
        for name in (*given.get(run.label, ()), *swept):
            if name in unused:
                raise InputError(
                    f"{experiment.cli_name}, {run.label}: {name} has no effect with the clip "
                    f"{run.settings.effective_clip}; remove it, or use the clip "
                    f"{' or '.join(unused[name])}"
                )


def _check_lines(session: Session, experiment: Experiment, runs: Sequence[PlannedRun]) -> None:
    known = sorted({run.label for run in runs})
    for label in session.settings.lines:
        if not known:
            raise InputError(f"{experiment.cli_name} has no runs, so `lines` has no effect")
        if label not in known:
            raise InputError(
                f"{experiment.name} has no line {label!r}; `lines` takes {'; '.join(known)}"
            )


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
