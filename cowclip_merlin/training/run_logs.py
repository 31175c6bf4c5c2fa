"""The logs of a run: train.log, CSV rows, TensorBoard events, the names and times in them."""

from __future__ import annotations

import csv
import logging
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cowclip_merlin.errors import InputError
from cowclip_merlin.metrics import ReliabilityBin
from cowclip_merlin.system import records
from cowclip_merlin.system.console import is_quiet
from cowclip_merlin.system.records import write_rows
from cowclip_merlin.targets import Target, kind_of

if TYPE_CHECKING:
    from cowclip_merlin.loading.row_order import PackedBatch
    from cowclip_merlin.training.evaluation import Evaluation, RegressionEvaluation


_BINARY = ("auc", "auc_error", "log_loss", "normalized_entropy", "calibration")
_NUMBER = ("rmse",)
_COLUMN = re.compile(rf"(test|validation)_(.+)_({'|'.join((*_BINARY, *_NUMBER))})")


def is_metric_column(name: str) -> bool:
    """Whether a name is that of a column of `metrics.csv` for one of several targets.

    >>> is_metric_column("test_click_auc"), is_metric_column("test_auc")
    (True, False)
    """
    return _COLUMN.fullmatch(name) is not None


def metrics_of(split: str, result: Evaluation | RegressionEvaluation) -> dict[str, float]:
    """Return the columns of `metrics.csv` for the first target, then for each by its name.

    A number has none of the former, and a label of 0 and 1 alone none of the latter, which are
    named as Keras names them: the target, then the metric.
    """
    first = {f"{split}_{name}": getattr(result, name) for name in _metrics_of(result)}
    return (first if hasattr(result, "auc") else {}) | {
        f"{split}_{name}_{metric}": getattr(found, metric)
        for name, found in result.targets.items()
        for metric in _metrics_of(found)
    }


def _metrics_of(found: Evaluation | RegressionEvaluation) -> Sequence[str]:
    return _BINARY if hasattr(found, "auc") else _NUMBER


def metric_words(row: Mapping[str, float], split: str) -> str:
    """Describe the AUC or RMSE of each of several targets of a row of metrics; "" with one target.

    >>> metric_words({"test_auc": 0.75, "test_click_auc": 0.75, "test_sec_rmse": 2.0}, "test")
    'click AUC 0.75000, sec RMSE 2.00000'
    """
    found = target_metrics(row, split)
    return ", ".join(f"{name} {target_words(each)}" for name, each in found.items())


def target_metrics(row: Mapping[str, float | str], split: str) -> dict[str, dict[str, float]]:
    """Return the metrics of each target in a row of metrics; {} with one label of 0 and 1 only.

    >>> target_metrics({"test_auc": 0.75, "test_click_auc": 0.75, "test_sec_rmse": 2.0}, "test")
    {'click': {'auc': 0.75}, 'sec': {'rmse': 2.0}}
    """
    found: dict[str, dict[str, float]] = {}
    for column, value in row.items():
        match = _COLUMN.fullmatch(column)
        if match and match[1] == split and value != "":
            found.setdefault(match[2], {})[match[3]] = float(value)
    return found


def target_words(metrics: Mapping[str, float]) -> str:
    """Name and write the AUC or RMSE of a target, which has the one or the other.

    >>> target_words({"rmse": 2.0}), target_words({"auc": 0.75, "log_loss": 0.5})
    ('RMSE 2.00000', 'AUC 0.75000')
    """
    kind = "auc" if "auc" in metrics else "rmse"
    return f"{kind.upper()} {metrics[kind]:.5f}"


def value_names(targets: Sequence[Target]) -> list[str]:
    """Return the names of the columns with predictions in a file.

    >>> value_names([Target("y")]), value_names([Target("y"), Target("sec", True)])
    (['probability'], ['probability_y', 'prediction_sec'])
    """
    if len(targets) == 1:
        return [kind_of(targets[0])]
    return [f"{kind_of(target)}_{target.name}" for target in targets]


def label_names(targets: Sequence[Target]) -> list[str]:
    """Return the names of the columns with labels in a file.

    >>> label_names([Target("y")]), label_names([Target("y"), Target("sec", True)])
    (['label'], ['label_y', 'label_sec'])
    """
    return ["label"] if len(targets) == 1 else [f"label_{name}" for name, _ in targets]


class Hooks:
    """What the training loop calls at its steps; here, each call does nothing.

    A subclass, such as the recorder of `cowclip_merlin.diagnostics`, changes no weight.

    Args:
        every: steps between two calls that need the state between two steps, which no execution
            crosses; 0: none does.
    """

    def __init__(self, every: int = 0) -> None:
        self.every = every

    def open(self, step: int, board: TensorBoard) -> None:
        """Start at this step. The loop calls this once, before the first step."""

    def before_step(self, batch: PackedBatch, *, step: int, epoch: int, rows: int) -> None:
        """See the batch of the next step, before every execution.

        Args:
            batch: the argument of the next call of the train function.
            step: number of steps done.
            epoch: the epoch, counted from 1.
            rows: number of rows in the steps done.
        """

    def pause(self) -> None:
        """Pause until the next step, while the loop evaluates or writes a checkpoint."""


METRICS = (
    "epoch",
    "step",
    "train_loss",
    "test_auc",
    "test_log_loss",
    "rows_per_second",
    "seconds",
    "test_seconds",
    "clipped_share",
    "mean_clip_factor",
    "embedding_lr",
    "dense_lr",
    "validation_auc",
    "validation_log_loss",
    "validation_seconds",
    "test_auc_error",
    "validation_auc_error",
    "test_normalized_entropy",
    "validation_normalized_entropy",
    "test_calibration",
    "validation_calibration",
)
"""Columns of `metrics.csv`; the columns of a split that the run does not score stay empty.

The metrics are those of the first target, if it is a label of 0 and 1. With other targets, each has
columns of its own, too.
"""

RELIABILITY = ("epoch", "split", "rows", "predicted", "observed")
"""Columns of `reliability.csv`; see `metrics.ReliabilityBin`."""

_OF_EVERY_SPLIT = tuple(n for n in METRICS if not n.startswith(("test_", "validation_")))


class _Output(logging.StreamHandler):
    """Standard output, which may be closed, as by `| head`: the training goes on without it."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            super().handleError(record)


@contextmanager
def run_logger(
    path: Path, *, console: bool = True, log_format: str = "text"
) -> Iterator[logging.Logger]:
    """Open a logger that writes to the file with times, and to standard output without times.

    Args:
        path: the file.
        console: whether to write to standard output.
        log_format: one of `records.FORMATS`; a line of JSON has its time in both places.
    """
    logger = logging.getLogger(f"cowclip_merlin.run.{path}")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    file = logging.FileHandler(path, encoding="utf-8")
    handlers: dict[logging.Handler, str] = {file: "%(asctime)s %(levelname)s %(message)s"}
    if console:
        output = _Output(sys.stdout)
        output.setLevel(logging.ERROR if is_quiet() else logging.NOTSET)
        handlers[output] = "%(message)s"
    for handler, text in handlers.items():
        handler.setFormatter(records.formatter(log_format, text))
        logger.addHandler(handler)
    try:
        yield logger
    finally:
        for handler in handlers:
            logger.removeHandler(handler)
        file.close()


Metrics = Mapping[str, float]
"""The metrics of a scoring, and the epochs trained then, by their columns in `metrics.csv`.

The number of epochs is whole after an epoch, and has decimals within it.
"""


def read_metrics(path: Path, *, epochs: float) -> list[dict[str, str]]:
    """Read the rows of the first `epochs` epochs as text; return [] if the file does not exist.

    Raises:
        InputError: if the file is damaged.
    """
    if not path.exists():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        known = [_epoch(row) for row in rows]
        if known != sorted(set(known)):
            raise ValueError("epochs that no run writes")
    except (csv.Error, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: damaged ({error!s:.80}); restore a copy, or delete it: `resume` then "
            "continues from the checkpoint, without the records of earlier epochs"
        ) from error
    return [row for row, epoch in zip(rows, known, strict=True) if epoch <= epochs]


def _epoch(row: Mapping[str, str]) -> float:
    """Return the epoch of a row, which must have the values that every run writes.

    Raises:
        ValueError: if a value is missing or not a number, or a column is unknown.
    """
    values = parse_metrics_row(row)
    split = "test" if any(name.startswith("test_") for name in values) else "validation"
    scores = () if target_metrics(row, split) else (f"{split}_auc", f"{split}_log_loss")
    for name in (*_OF_EVERY_SPLIT, *scores):
        if name not in values and not (name == "train_loss" and values["epoch"] % 1):
            raise ValueError(f"no {name}")
    if unknown := {n for n in set(row) - set(METRICS) if not is_metric_column(n)}:
        raise ValueError(f"unknown column {min(unknown)}")
    return values["epoch"]


def parse_metrics_row(row: Mapping[str, str]) -> Metrics:
    """Convert a row of text to numbers, without its empty columns.

    >>> parse_metrics_row({"epoch": "2", "test_auc": "0.75", "validation_auc": ""})
    {'epoch': 2, 'test_auc': 0.75}
    """
    kinds = {"epoch": _whole_or_float, "step": int}
    return {name: kinds.get(name, float)(value) for name, value in row.items() if value}


def _whole_or_float(text: str) -> float:
    return int(text) if text.isdecimal() else float(text)


def epoch_seconds(row: Mapping[str, float | str], rows: int) -> float:
    """Return the seconds of a whole epoch; a resumed epoch records only those after the resume.

    Args:
        row: row of the metrics.
        rows: rows in an epoch.

    >>> epoch_seconds({"rows_per_second": "1000.0", "seconds": "0.1"}, 500)
    0.5
    """
    speed = float(row["rows_per_second"])
    return (
        rows / speed if speed else float(row["seconds"])
    )  # 0: the run stopped in the epoch's last step


def write_metrics(path: Path, rows: Sequence[Metrics]) -> None:
    """Write all rows in one atomic step; the columns of several targets come last."""
    more = dict.fromkeys(name for row in rows for name in row if is_metric_column(name))
    write_rows(path, [*METRICS, *more], rows)


def write_reliability(path: Path, epoch: float, split: str, bins: Sequence[ReliabilityBin]) -> None:
    """Write the bins of an epoch after those of earlier epochs, in one atomic step."""
    earlier = [row for row in read_reliability(path) if float(row["epoch"]) < epoch]
    head = {"epoch": epoch, "split": split}
    write_rows(path, RELIABILITY, [*earlier, *({**head, **each._asdict()} for each in bins)])


def read_reliability(path: Path) -> list[dict[str, str]]:
    """Read the rows of `reliability.csv` as text; return [] if the file does not exist.

    Raises:
        InputError: if the file is damaged.
    """
    if not path.exists():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        for row in rows:
            _ = row["split"], [float(row[n]) for n in RELIABILITY if n != "split"]
    except (csv.Error, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: damaged ({error!s:.80}); delete it") from error
    return rows


class TensorBoard:
    """Writes the scalars of a run for TensorBoard."""

    def __init__(self, folder: Path) -> None:
        from cowclip_merlin import compat

        self._tf = compat.tensorflow()
        self._writer = self._tf.summary.create_file_writer(str(folder))

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write the scalars of one step."""
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb

        # One event for all: `tf.summary.scalar` for each takes longer than a training step.
        # Concatenated serialized messages parse as one message with all their values.
        event = b"".join(scalar_pb(n, value).SerializeToString() for n, value in scalars.items())
        with self._writer.as_default():
            self._tf.summary.experimental.write_raw_pb(event, step=step)

    def close(self) -> None:
        """Flush the buffer and close the file."""
        self._writer.close()


class NoBoard:
    """In place of `TensorBoard` in a process that writes no files."""

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


WAIT = 3.0
"""Seconds until a line says what the first step waits for."""

LONG = 1.0
"""Seconds from which on the first step does not count for the speed."""


class Lap:
    """The time of the steps from one scoring to the next, without pauses."""

    def __init__(self, first: int) -> None:
        self.first, self.seconds, self._started = first, 0.0, time.perf_counter()

    def pause(self) -> None:
        """Stop the clock."""
        self.seconds += time.perf_counter() - self._started

    def go_on(self) -> None:
        """Start it again."""
        self._started = time.perf_counter()


@contextmanager
def saying_that_it_compiles(log: logging.Logger) -> Iterator[None]:
    """Log a line if the block takes long; a run with new kernels compiles for some 20 seconds."""
    line = "compiling the first step; only the first run with these kernels takes long"
    timer = threading.Timer(WAIT, log.info, [line])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
