"""Check an experiment before training, which may take hours."""

from __future__ import annotations

from collections.abc import Sequence

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.definitions import Experiment
from cowclip_merlin.experiments.planning.plan import describe_infeasible
from cowclip_merlin.experiments.planning.planned_run import PlannedRun
from cowclip_merlin.experiments.planning.sweep import VALIDATION_FRACTION
from cowclip_merlin.experiments.results.folder import check_outputs_replaceable
from cowclip_merlin.experiments.session import TRAINING_KINDS, Session
from cowclip_merlin.training.build import build_optimizer, choose_device
from cowclip_merlin.workflows.prepared.folder import VALIDATION


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
