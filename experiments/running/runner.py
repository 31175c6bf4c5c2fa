"""Find the runs without a result, and train one."""

from __future__ import annotations

import io
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from cowclip_merlin import compat
from cowclip_merlin.errors import Diverged
from cowclip_merlin.experiments.planning.planned_run import PlannedRun
from cowclip_merlin.experiments.results.result import Result
from cowclip_merlin.experiments.results.results_csv import read_results
from cowclip_merlin.experiments.running.derived_data import derive_data, naming_derived_data
from cowclip_merlin.experiments.running.run_result import RunStart, make_result
from cowclip_merlin.training import run_logs, train
from cowclip_merlin.training.checkpoint import list_checkpoints
from cowclip_merlin.workflows import PreparedData


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
