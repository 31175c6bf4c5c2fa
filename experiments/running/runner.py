"""Find the runs without a result, train one, and make its result from its metrics."""

from __future__ import annotations

import io
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from cowclip_merlin import compat
from cowclip_merlin.errors import Diverged
from cowclip_merlin.experiments.planning.plan import PlannedRun
from cowclip_merlin.experiments.results.result import Result, read_results
from cowclip_merlin.experiments.running.derived_data import derive_data, naming_derived_data
from cowclip_merlin.loading import validation_rows
from cowclip_merlin.scaling import Hyperparameters
from cowclip_merlin.system.machine import PACKAGES, hardware, versions
from cowclip_merlin.training import run_logs, train
from cowclip_merlin.training.checkpoint import list_checkpoints
from cowclip_merlin.training.run_logs import target_metrics
from cowclip_merlin.training.run_settings import BETAS, RunSettings
from cowclip_merlin.types import Json, JsonObject
from cowclip_merlin.workflows import PreparedData

_PACKAGES = ("python", *PACKAGES)


@dataclass(frozen=True, kw_only=True)
class RunStart:
    """Time and load of the machine before a run.

    Attributes:
        time: UTC, ISO 8601.
        load: running processes in the minute before.
    """

    time: str
    load: float

    @classmethod
    def now(cls) -> RunStart:
        """Return the current time and load."""
        time = datetime.now(timezone.utc).isoformat(timespec="seconds")
        return cls(time=time, load=round(os.getloadavg()[0], 2))

    def columns(self, machine: Mapping[str, Json]) -> JsonObject:
        """Return the columns that say when, where and with what a run was made.

        Args:
            machine: output of `hardware`.
        """
        made_with = versions()
        return {
            "started": self.time,
            "revision": made_with.get("git_revision", made_with["cowclip_merlin"]),
            "tensorflow": made_with["tensorflow"],
            "hardware": describe_hardware(machine),
            "load": self.load,
            "versions": ", ".join(f"{k} {v}" for k, v in made_with.items() if k in _PACKAGES),
        }


def make_result(
    run: PlannedRun,
    data: PreparedData,
    epochs: Sequence[Mapping[str, float | str]],
    *,
    status: str,
    start: RunStart,
    fingerprint: str,
    data_name: str,
) -> Result:
    """Make the row of the results table for a finished run.

    Args:
        run: the finished run.
        data: its training data.
        epochs: metrics of each epoch.
        status: "done" or "diverged".
        start: time and load before the run.
        fingerprint: fingerprint of the data before the run's variant was derived.
        data_name: name of the data set for readers.
    """
    rows = rows_trained(data, run)
    return Result(
        run_id=run.run_id(fingerprint),
        config_hash=run.config_hash(fingerprint),
        status=status,
        data=data_name,
        data_fingerprint=fingerprint,
        variant=str(run.variant),
        train_rows=rows,
        **_settings(run, data),
        **_scores(epochs, status, run.settings.scored_split, rows),
        steps_per_epoch=-(-rows // run.settings.batch_size),
        **start.columns(hardware()),
    )


def _settings(run: PlannedRun, data: PreparedData) -> JsonObject:
    """Return the columns with settings."""
    settings = run.settings
    values, given = settings.hyperparameters(data.kind), ("optimizer", "update", "epochs")
    return {
        **settings_columns(settings, values),
        **{name: getattr(values, name) for name in ("warmup_epochs", *BETAS, "epsilon")},
        **{name: getattr(settings, name) for name in given},
        "split": settings.scored_split,
    }


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


def rows_trained(data: PreparedData, run: PlannedRun) -> int:
    """Return the rows of an epoch, without those held out for validation."""
    rows, fraction = data.rows["train"], run.settings.validation_fraction
    return rows - validation_rows(rows, fraction) if fraction else rows


def _scores(
    epochs: Sequence[Mapping[str, float | str]], status: str, prefix: str, rows: int
) -> JsonObject:
    """Return the columns with scores and times; NaN or None for values that a run lacks."""
    auc = [float(epoch[f"{prefix}_auc"]) for epoch in epochs]
    seconds = sum(run_logs.epoch_seconds(epoch, rows) for epoch in epochs)
    done = status == "done"
    return {
        "auc": auc[-1] if done else float("nan"),
        "log_loss": float(epochs[-1][f"{prefix}_log_loss"]) if done else float("nan"),
        "auc_error": _auc_error(epochs[-1], prefix) if done else None,
        "targets": _targets(epochs[-1], prefix) if done else "",
        "best_auc": max(auc, default=float("nan")),
        "best_epoch": auc.index(max(auc)) + 1 if auc else 0,
        "seconds": round(seconds, 3),
        "rows_per_second": round(len(epochs) * rows / seconds, 1) if seconds else 0.0,
    }


def _targets(epoch: Mapping[str, float | str], split: str) -> str:
    """Return the scores of each of several labels as JSON; empty with one."""
    found = target_metrics(epoch, split)
    return json.dumps(found) if found else ""


def _auc_error(epoch: Mapping[str, float | str], split: str) -> float | None:
    """Return the standard error of the AUC; None if a version without it scored the epoch."""
    error = epoch.get(f"{split}_auc_error", "")
    return None if error == "" else float(error)


def describe_hardware(machine: Mapping[str, Json]) -> str:
    """Describe the GPU, or the processor and its cores, from the output of `hardware`.

    >>> cpu = {"gpus": 0, "gpu": "", "cores": 2, "processor": "AMD EPYC", "machine": "x86_64"}
    >>> describe_hardware(cpu)
    '2 CPU cores, AMD EPYC'
    """
    if machine["gpus"]:
        return f"{machine['gpus']} x {machine['gpu'].split(', ')[0]}"
    return f"{machine['cores']} CPU cores, {machine['processor'] or machine['machine']}"


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """Context of all runs: the data, the results folder and the device.

    Attributes:
        data: the prepared folder.
        out: the results folder.
        data_name: name of the data set, for readers.
        device: "auto", "cpu" or "gpu".
    """

    data: PreparedData
    out: Path
    data_name: str
    device: str = "auto"

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the data."""
        return self.data.fingerprint


def pending_runs(runs: Sequence[PlannedRun], context: RunContext) -> list[PlannedRun]:
    """Return the runs without a result; equal runs only once."""
    done = {result.config_hash for result in read_results(context.out)}
    pending: dict[str, PlannedRun] = {}
    for run in runs:
        config_hash = run.config_hash(context.fingerprint)
        if config_hash not in done:
            pending.setdefault(config_hash, run)
    return list(pending.values())


def existing_results(runs: Sequence[PlannedRun], context: RunContext) -> dict[PlannedRun, Result]:
    """Return the existing results, by run."""
    found = {result.config_hash: result for result in read_results(context.out)}
    pairs = ((run, found.get(run.config_hash(context.fingerprint))) for run in runs)
    return {run: result for run, result in pairs if result is not None}


def remove_left_checkpoints(out: Path) -> None:
    """Remove the checkpoints of runs with a result.

    They are left where a process was killed between recording the result and removing them.
    Checkpoints take three times the size of the tables, for every run.
    """
    for result in read_results(out):
        remove_checkpoints(out, result)


def remove_checkpoints(out: Path, result: Result) -> None:
    """Remove the checkpoints of a run that is recorded."""
    checkpoints = out / "runs" / result.run_id / "checkpoints"
    if checkpoints.exists():
        shutil.rmtree(checkpoints)


def train_run(run: PlannedRun, context: RunContext) -> Result:
    """Train one run and make its result, also if it diverged.

    A run that a signal stopped continues from its checkpoint.

    Raises:
        InputError: if the data or a setting is wrong.
        Stopped: if a signal stops it.
    """
    data = derive_data(context.data, run.variant, context.out / "data")
    folder = context.out / "runs" / run.run_id(context.fingerprint)
    start = RunStart.now()
    resume = bool(list_checkpoints(folder / "checkpoints"))
    if folder.exists() and not resume:  # stopped before its first checkpoint, or diverged
        shutil.rmtree(folder)
    compat.release_models()
    with naming_derived_data(data.path) if str(run.variant) else nullcontext():
        status, epochs = _train(run, data, folder, resume=resume, device=context.device)
    return make_result(
        run,
        data,
        epochs,
        status=status,
        start=start,
        fingerprint=context.fingerprint,
        data_name=context.data_name,
    )


def _train(
    run: PlannedRun, data: PreparedData, folder: Path, *, resume: bool, device: str
) -> tuple[str, Sequence[Mapping[str, float | str]]]:
    """Train a run; return its status and the metrics of its epochs."""
    try:
        # The run's train.log has the output.
        with redirect_stdout(io.StringIO()), hide_retracing_warnings():
            return "done", train(data.path, run.settings, out=folder, resume=resume, device=device)
    except Diverged:
        path = folder / "metrics.csv"
        return "diverged", list(run_logs.read_metrics(path, epochs=run.settings.epochs))


@contextmanager
def hide_retracing_warnings() -> Iterator[None]:
    """Hide TensorFlow's warning about tracing many functions, because each run traces its own."""
    logger = logging.getLogger("tensorflow")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
