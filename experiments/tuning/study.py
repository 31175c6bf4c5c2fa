"""Open, resume and check the Optuna study of a search, which is a SQLite file."""

from __future__ import annotations

import shutil
import sqlite3
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from cowclip_merlin.errors import MALFORMED, InputError, StackError
from cowclip_merlin.system.folders import PREPARED, RESULTS, RUN, check_out
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.types import Json, JsonObject

if TYPE_CHECKING:
    from optuna import Study
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

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
        raise StackError(
            f'{error.name} is not installed; pip install "cowclip-merlin[tune]"'
        ) from None
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
    with naming_study(out / STUDY), _quiet(optuna()):
        study = _load(out / STUDY)
        about = {"settings": settings.as_dict(), "fingerprint": fingerprint}
        if "settings" in study.user_attrs:
            _check_same(out, study.user_attrs, settings, fingerprint)
        for name, value in about.items():
            study.set_user_attr(name, value)
        _fail_left_trials(study, out)
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
    """Make the sampler of one trial.

    Each trial has a seed of its own. So a resumed search tries what it would have tried without
    the stop.

    Args:
        seed: of the search.
        finished: number of trials that have finished.
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


def _fail_left_trials(study: Study, out: Path) -> None:
    states = optuna().trial.TrialState
    for trial in study.get_trials(deepcopy=False, states=(states.RUNNING,)):
        study.tell(trial.number, state=states.FAIL)
        shutil.rmtree(trial_folder(out, trial.number), ignore_errors=True)


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
def naming_study(path: Path) -> Iterator[None]:
    """Name the file of the study in errors of SQLite.

    Raises:
        InputError: in place of such an error.
    """
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
def _quiet(library: ModuleType) -> Iterator[None]:
    """Hide Optuna's log of each trial, and its note that groups of TPE may change."""
    before = library.logging.get_verbosity()
    library.logging.set_verbosity(library.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", library.exceptions.ExperimentalWarning)
            yield
    finally:
        library.logging.set_verbosity(before)
