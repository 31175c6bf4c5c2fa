"""Runs what is missing of a plan, one after the other, and records each in the results table."""

from __future__ import annotations

import io
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cowclip_merlin import compat
from cowclip_merlin.errors import Diverged
from cowclip_merlin.experiments.plan import Run
from cowclip_merlin.experiments.results import Result, append_result, read_results
from cowclip_merlin.experiments.variant import derive
from cowclip_merlin.loading import validation_rows
from cowclip_merlin.system.hardware import hardware
from cowclip_merlin.system.versions import PACKAGES, versions
from cowclip_merlin.training import run_logs, train
from cowclip_merlin.training.checkpoint import checkpoints_in
from cowclip_merlin.workflows import PreparedData


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where runs are made.

    Attributes:
        data: the prepared folder.
        out: the results folder.
        name: of the data set, as a reader should see it.
        device: "auto", "cpu" or "gpu".
    """

    data: PreparedData
    out: Path
    name: str
    device: str = "auto"

    @property
    def fingerprint(self) -> str:
        """Of the data."""
        return self.data.fingerprint


def todo(runs: Sequence[Run], place: Place) -> list[Run]:
    """The runs that have no result yet, each once."""
    done = {result.config_hash for result in read_results(place.out)}
    left: dict[str, Run] = {}
    for run in runs:
        name = run.config_hash(place.fingerprint)
        if name not in done:
            left.setdefault(name, run)
    return list(left.values())


def results_of(runs: Sequence[Run], place: Place) -> dict[Run, Result]:
    """The results that are there, by run."""
    found = {result.config_hash: result for result in read_results(place.out)}
    pairs = ((run, found.get(run.config_hash(place.fingerprint))) for run in runs)
    return {run: result for run, result in pairs if result is not None}


def run_all(runs: Sequence[Run], place: Place) -> Iterator[Result]:
    """Make the runs and yield each result once it is recorded.

    A run that a signal stopped goes on from its checkpoint at the next call.

    Raises:
        InputError: the data or a setting is wrong.
        Stopped: a signal came; everything so far is recorded.
    """
    for run in runs:
        result = run_one(run, place)
        append_result(place.out, result)
        checkpoints = place.out / "runs" / result.run_id / "checkpoints"
        if checkpoints.exists():
            # Three times the tables, for every run. Not before the result is safe: half of them
            # cannot be resumed from.
            shutil.rmtree(checkpoints)
        yield result


def run_one(run: Run, place: Place) -> Result:
    """Train one run; a diverged one is a result, too."""
    data = derive(place.data, run.variant, place.out / "data")
    folder = place.out / "runs" / run.run_id(place.fingerprint)
    load, started = os.getloadavg()[0], _now()
    resume = bool(checkpoints_in(folder / "checkpoints"))
    if folder.exists() and not resume:  # stopped before its first checkpoint, or diverged
        shutil.rmtree(folder)
    compat.tensorflow().keras.backend.clear_session()
    try:
        with redirect_stdout(io.StringIO()), _quiet():  # it is in the run's train.log
            epochs = train(data.path, run.settings, out=folder, resume=resume, device=place.device)
    except Diverged:
        epochs = list(run_logs.read_metrics(folder / "metrics.csv", epochs=run.settings.epochs))
        return _result(run, place, data, epochs, "diverged", load, started)
    return _result(run, place, data, epochs, "done", load, started)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps back TensorFlow's advice not to trace many functions: each run traces its own."""
    logger = logging.getLogger("tensorflow")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _result(
    run: Run,
    place: Place,
    data: PreparedData,
    epochs: Sequence[Any],
    status: str,
    load: float,
    started: str,
) -> Result:
    settings = run.settings
    values = settings.hyperparameters(data.kind)
    made_with = versions()
    rows = rows_trained(data, run)
    return Result(
        run_id=run.run_id(place.fingerprint),
        config_hash=run.config_hash(place.fingerprint),
        status=status,
        data=place.name,
        data_fingerprint=place.fingerprint,
        variant=str(run.variant),
        train_rows=rows,
        split="validation" if settings.validation_fraction else "test",
        model=settings.model,
        mlp="-".join(map(str, settings.mlp)),
        optimizer=settings.optimizer,
        rule=settings.rule,
        clip=settings.effective_clip,
        update=settings.update,
        batch_size=settings.batch_size,
        base_batch_size=settings.base_batch_size,
        embedding_lr=values.embedding_lr,
        dense_lr=values.dense_lr,
        l2=values.l2,
        r=values.r,
        zeta=values.zeta,
        init_std=values.init_std,
        warmup_epochs=values.warmup_epochs,
        epochs=settings.epochs,
        seed=settings.seed,
        **_scores(epochs, status, settings.validation_fraction > 0, rows),
        steps_per_epoch=-(-rows // settings.batch_size),
        started=started,
        revision=made_with.get("git_revision", made_with["cowclip_merlin"]),
        tensorflow=made_with["tensorflow"],
        hardware=in_words(hardware()),
        load=round(load, 2),
        versions=", ".join(f"{k} {made_with[k]}" for k in made_with if k in _STATED),
    )


_STATED = ("python", *PACKAGES)


def rows_trained(data: PreparedData, run: Run) -> int:
    """Rows of an epoch: without those that are held out for validation."""
    rows, fraction = data.rows["train"], run.settings.validation_fraction
    return rows - validation_rows(rows, fraction) if fraction else rows


def _scores(
    epochs: Sequence[Any], status: str, validation: bool, rows: int
) -> dict[str, float | int]:
    """What the metrics of all epochs say; NaN for what a diverged run does not have."""
    prefix = "validation" if validation else "test"
    auc = [float(epoch[f"{prefix}_auc"]) for epoch in epochs]
    seconds = sum(run_logs.seconds_of(epoch, rows) for epoch in epochs)
    ended = status == "done"
    return {
        "auc": auc[-1] if ended else float("nan"),
        "log_loss": float(epochs[-1][f"{prefix}_log_loss"]) if ended else float("nan"),
        "best_auc": max(auc, default=float("nan")),
        "best_epoch": auc.index(max(auc)) + 1 if auc else 0,
        "seconds": round(seconds, 3),
        "rows_per_second": round(len(epochs) * rows / seconds, 1) if seconds else 0.0,
    }


def in_words(machine: Mapping[str, Any]) -> str:
    """GPU, or processor and cores, of what `bench.hardware` found.

    >>> in_words({"gpus": 0, "gpu": "", "cores": 2, "processor": "AMD EPYC", "machine": "x86_64"})
    '2 CPU cores, AMD EPYC'
    """
    if machine["gpus"]:
        return f"{machine['gpus']} x {machine['gpu'].split(', ')[0]}"
    return f"{machine['cores']} CPU cores, {machine['processor'] or machine['machine']}"
