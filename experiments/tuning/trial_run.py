"""Train one trial of a search, until its validation AUC no longer grows."""

from __future__ import annotations

import io
import shutil
import time
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cowclip_merlin import compat
from cowclip_merlin.errors import Diverged
from cowclip_merlin.experiments.running.runner import hide_retracing_warnings
from cowclip_merlin.experiments.tuning.study import optuna, trial_folder
from cowclip_merlin.training.run import run_training
from cowclip_merlin.training.run_logs import is_metric_column
from cowclip_merlin.training.run_settings import RunOptions, RunSettings
from cowclip_merlin.training.stopping.early_stopping import best_row, scorings_without_better

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial, Trial

    from cowclip_merlin.training.run_logs import Metrics

PATIENCE = 2
"""Epochs without a better validation AUC after which a trial ends; see `early_stopping`."""

_NOT_KEPT = ("checkpoints", "events", "diagnostics.csv")


@dataclass(frozen=True, kw_only=True)
class TrialContext:
    """What all trials of a search share.

    Attributes:
        data: the prepared folder.
        out: the folder of the search.
        device: "auto", "cpu" or "gpu".
        deadline: time of `time.monotonic` at which a trial ends with its epoch; None: no limit.
    """

    data: Path
    out: Path
    device: str = "auto"
    deadline: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return self.deadline is not None and time.monotonic() >= self.deadline


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a trial ended.

    Attributes:
        ended: "epochs" (all of them), "early stop", "time", "pruned" or "diverged".
        epochs: number of epochs trained.
        best_epoch: the epoch with the best validation AUC; 0 without one.
        auc: its validation AUC; NaN without one.
        log_loss: its validation log loss.
        auc_error: standard error of its AUC.
        aucs: validation AUC of each epoch.
        seconds: of the whole trial.
        targets: with several labels, the metrics of each in the best epoch, by their columns in
            `metrics.csv`. The AUCs above are those of the first label, which decides.
    """

    ended: str
    epochs: int
    best_epoch: int
    auc: float
    log_loss: float
    auc_error: float
    aucs: list[float]
    seconds: float
    targets: dict[str, float] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether the trial counts for the best one."""
        return self.ended not in ("pruned", "diverged")


def outcome_of(trial: FrozenTrial) -> Outcome:
    """Return how a finished trial ended."""
    return Outcome(**trial.user_attrs["outcome"])


class _TrialEnds(Exception):
    """Ends a training after an epoch, for the reason that its argument names."""


class _EpochWatch:
    """Reports each epoch to Optuna, and ends a trial that need not go on."""

    def __init__(self, trial: Trial, settings: RunSettings, context: TrialContext) -> None:
        self._trial, self._settings, self._context = trial, settings, context
        self.rows: list[Metrics] = []

    def __call__(self, row: Metrics) -> None:
        self.rows.append(row)
        self._trial.report(row["validation_auc"], step=row["epoch"])
        if scorings_without_better(self.rows, self._settings) >= PATIENCE:
            raise _TrialEnds("early stop")
        if self._trial.should_prune():
            raise _TrialEnds("pruned")
        if self._context.is_over:
            raise _TrialEnds("time")

    @property
    def best(self) -> Metrics:
        """The record of the best epoch, the first one of equals."""
        return best_row(self.rows, "validation")


def run_trial(trial: Trial, settings: RunSettings, context: TrialContext) -> Outcome:
    """Train a trial and record it in Optuna.

    Its run folder keeps `config.json`, `metrics.csv` and `train.log`. It has none if the trial
    diverged in its first epoch, or failed.

    Args:
        trial: of Optuna.
        settings: of the run, which scores validation rows.
        context: of the search.

    Raises:
        BaseException: what ends the training otherwise; the trial is marked as failed.
    """
    study, states = trial.study, optuna().trial.TrialState
    folder = trial_folder(context.out, trial.number)
    try:
        outcome = _train(trial, settings, context, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        study.tell(trial, state=states.FAIL)
        raise
    trial.set_user_attr("outcome", asdict(outcome))
    if outcome.is_complete:
        study.tell(trial, outcome.auc)
    else:
        study.tell(trial, state=states.PRUNED)
    return outcome


def _train(trial: Trial, settings: RunSettings, context: TrialContext, folder: Path) -> Outcome:
    watch, started, ended = _EpochWatch(trial, settings, context), time.monotonic(), "epochs"
    compat.release_models()
    try:
        # The run's train.log has the output.
        with redirect_stdout(io.StringIO()), hide_retracing_warnings():
            run_training(
                context.data,
                settings,
                out=folder,
                options=RunOptions(device=context.device),
                recorder=None,
                after_epoch=watch,
            )
    except _TrialEnds as end:
        ended = str(end)
    except Diverged:
        ended = "diverged"
    for name in _NOT_KEPT:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    return _outcome(ended, watch, time.monotonic() - started)


def _outcome(ended: str, watch: _EpochWatch, seconds: float) -> Outcome:
    nan = float("nan")
    best = watch.best if watch.rows else {}
    return Outcome(
        ended=ended,
        epochs=len(watch.rows),
        best_epoch=best.get("epoch", 0),
        auc=best.get("validation_auc", nan),
        log_loss=best.get("validation_log_loss", nan),
        auc_error=best.get("validation_auc_error", nan),
        aucs=[row["validation_auc"] for row in watch.rows],
        seconds=round(seconds, 3),
        targets={name: value for name, value in best.items() if is_metric_column(name)},
    )
