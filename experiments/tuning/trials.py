"""The Optuna study of a search, a SQLite file, and the training of one trial."""

from __future__ import annotations

import shutil
import sqlite3
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from cowclip_merlin.errors import MALFORMED, Diverged, InputError, not_installed
from cowclip_merlin.experiments.runs import quiet_training
from cowclip_merlin.system.folders import PREPARED, RESULTS, RUN, check_out
from cowclip_merlin.training.run import run_training
from cowclip_merlin.training.run_logs import Metrics, is_metric_column
from cowclip_merlin.training.run_settings import RunOptions, RunSettings
from cowclip_merlin.training.stopping.early_stopping import best_row, scorings_without_better
from cowclip_merlin.types import Json, JsonObject

if TYPE_CHECKING:
    from optuna import Study
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial, Trial


STUDY = "study.db"
OUTPUTS = ("settings.yaml", "trials.csv", "history.svg", "trials")
_NAME = "cowclip"
_STARTUP_TRIALS = 8  # random ones, before TPE learns from them
_UNPRUNED_TRIALS = 5
_UNPRUNED_EPOCHS = 2


def optuna() -> ModuleType:
    """Import Optuna.

    Raises:
        StackError: if it is not installed.
    """
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise not_installed(str(error.name)) from None
    return optuna


def check_folder(out: Path, *, resume: bool) -> None:
    """Check that a path can hold a search, or holds one to resume.

    Raises:
        InputError: if it does not, or holds something else.
    """
    check_out(out, (RESULTS, PREPARED, RUN))
    there = (out / STUDY).exists()
    if there and not resume:
        raise InputError(f"{out}: already holds a search; use `resume` or another `out`")
    if resume and not there:
        raise InputError(f"{out}: has no {STUDY}, so there is no search to resume; omit `resume`")
    for name in OUTPUTS if not there else ():
        if (out / name).exists():
            raise InputError(f"{out}: holds {name} but no search; use another `out`")


@contextmanager
def open_study(out: Path, settings: RunSettings, fingerprint: str) -> Iterator[Study]:
    """Open the study of a folder, which is created if it is missing.

    Trials that a killed process left are marked as failed, and their folders are removed.

    Args:
        out: the folder.
        settings: settings that all trials share.
        fingerprint: of the prepared data.

    Raises:
        InputError: if the study is damaged, or has other settings or data.
    """
    states = optuna().trial.TrialState
    with _naming_study(out / STUDY), _quiet_optuna():
        study = _load(out / STUDY)
        if "settings" in study.user_attrs:
            _check_same(out, study.user_attrs, settings, fingerprint)
        study.set_user_attr("settings", settings.as_dict())
        study.set_user_attr("fingerprint", fingerprint)
        for trial in study.get_trials(deepcopy=False, states=(states.RUNNING,)):
            study.tell(trial.number, state=states.FAIL)
            shutil.rmtree(trial_folder(out, trial.number), ignore_errors=True)
        yield study


def _load(path: Path) -> Study:
    """Load the study, with a connection that takes a path of any characters."""
    from sqlalchemy.pool import NullPool

    library = optuna()
    engine: JsonObject = {"creator": lambda: sqlite3.connect(path), "poolclass": NullPool}
    storage = library.storages.RDBStorage("sqlite://", engine_kwargs=engine)
    return library.create_study(
        storage=storage,
        study_name=_NAME,
        direction="maximize",
        load_if_exists=True,
        pruner=library.pruners.MedianPruner(
            n_startup_trials=_UNPRUNED_TRIALS, n_warmup_steps=_UNPRUNED_EPOCHS
        ),
    )


def make_sampler(seed: int, finished: int) -> BaseSampler:
    """Make the sampler of the trial after those that have finished.

    Each trial has a seed of its own. So a resumed search tries what it would have tried without
    the stop.
    """
    return optuna().samplers.TPESampler(
        seed=(seed + 7919 * finished) % 2**32,
        n_startup_trials=_STARTUP_TRIALS,
        multivariate=True,
        group=True,
    )


def finished_trials(study: Study) -> list[FrozenTrial]:
    """Return the trials that count: complete, pruned or diverged."""
    states = optuna().trial.TrialState
    return study.get_trials(deepcopy=False, states=(states.COMPLETE, states.PRUNED))


def complete_trials(study: Study) -> list[FrozenTrial]:
    """Return the trials with a value, which were neither pruned nor diverged."""
    return study.get_trials(deepcopy=False, states=(optuna().trial.TrialState.COMPLETE,))


def enqueue_missing(
    study: Study, name: str, point: Mapping[str, Json], settings: RunSettings
) -> None:
    """Put settings at the front of the search, unless it has or had them there."""
    failed = optuna().trial.TrialState.FAIL
    trials = study.get_trials(deepcopy=False)
    if name not in {t.user_attrs.get("start") for t in trials if t.state != failed}:
        attributes = {"start": name, "settings": settings.as_dict()}
        study.enqueue_trial(dict(point), user_attrs=attributes)


def trial_folder(out: Path, number: int) -> Path:
    """Return the run folder of a trial."""
    return out / "trials" / f"{number:03d}"


def _check_same(
    out: Path, before: Mapping[str, Json], settings: RunSettings, fingerprint: str
) -> None:
    try:
        old = RunSettings.from_dict(before["settings"]).as_dict()
    except MALFORMED as error:
        raise InputError(
            f"{out / STUDY}: damaged settings ({error!s:.80}); use another `out`"
        ) from None
    for name, value in settings.as_dict().items():
        if old[name] != value:
            raise InputError(
                f"{out}: was searched with {name} {old[name]}, not {value}; resume with the same "
                "settings, or use another `out`"
            )
    if before.get("fingerprint") != fingerprint:
        raise InputError(f"{out}: was searched on other data; resume with the same folder")


@contextmanager
def _naming_study(path: Path) -> Iterator[None]:
    """Name the file of the study in errors of SQLite."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (optuna().exceptions.StorageInternalError, SQLAlchemyError) as error:
        cause = error.__cause__ or error
        words = " ".join(str(getattr(cause, "orig", cause)).split())
        raise InputError(
            f"{path}: SQLite cannot use it ({words:.80}); free the disk, restore a copy, or use "
            "another `out`"
        ) from error


@contextmanager
def _quiet_optuna() -> Iterator[None]:
    """Hide Optuna's log of each trial, and its note that groups of TPE may change."""
    library = optuna()
    before = library.logging.get_verbosity()
    library.logging.set_verbosity(library.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", library.exceptions.ExperimentalWarning)
            yield
    finally:
        library.logging.set_verbosity(before)


PATIENCE = 2
"""Epochs without a better validation AUC after which a trial ends; see `early_stopping`."""

_NOT_KEPT = ("checkpoints", "events", "diagnostics.csv")


@dataclass(frozen=True, kw_only=True)
class TrialContext:
    """What all trials of a search share: the prepared folder, that of the search, the device."""

    data: Path
    out: Path
    device: str = "auto"
    deadline: float | None = None  # of `time.monotonic`; a trial then ends with its epoch

    @property
    def seconds_left(self) -> float | None:
        """Seconds to the deadline; None: there is none."""
        return None if self.deadline is None else self.deadline - time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return self.deadline is not None and time.monotonic() >= self.deadline


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a trial ended. Of several labels, the first one decides."""

    ended: str  # "epochs" (all of them), "early stop", "time", "pruned" or "diverged"
    epochs: int
    best_epoch: int  # with the best validation AUC; 0 without one
    auc: float  # of that epoch; NaN without one
    log_loss: float
    auc_error: float
    aucs: list[float]  # of each epoch
    seconds: float
    targets: dict[str, float] = field(default_factory=dict)  # by column, with several labels

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


def run_trial(trial: Trial, settings: RunSettings, context: TrialContext) -> Outcome:
    """Train a trial and record it in Optuna.

    Its run folder keeps `config.json`, `metrics.csv` and `train.log`. It has none if the trial
    diverged in its first epoch, or failed.

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
    try:
        with quiet_training():
            options = RunOptions(device=context.device)
            run_training(
                context.data,
                settings,
                out=folder,
                options=options,
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
    nan, rows = float("nan"), watch.rows
    best = best_row(rows, "validation") if rows else {}  # the first one of equals
    return Outcome(
        ended=ended,
        epochs=len(rows),
        best_epoch=best.get("epoch", 0),
        auc=best.get("validation_auc", nan),
        log_loss=best.get("validation_log_loss", nan),
        auc_error=best.get("validation_auc_error", nan),
        aucs=[row["validation_auc"] for row in rows],
        seconds=round(time.monotonic() - started, 3),
        targets={name: value for name, value in best.items() if is_metric_column(name)},
    )
