"""Results of runs and replays: settings, scores, versions, hardware; their CSV files."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from cowclip_merlin.errors import InputError
from cowclip_merlin.system.files import atomic_write
from cowclip_merlin.system.folders import REPLAYS_CSV, RESULTS_CSV

Row = TypeVar("Row")


def _float_or_none(text: str = "") -> float | None:
    return float(text) if text else None


_Cell: TypeAlias = "int | float | str | None"

_TYPES: Mapping[str, Callable[..., _Cell]] = {
    "int": int,
    "float": float,
    "str": str,
    "float | None": _float_or_none,
}


def column_types(row_type: type) -> dict[str, Callable[..., _Cell]]:
    """Return column -> conversion of its text; called without a text, it returns a blank value."""
    return {field.name: _TYPES[str(field.type)] for field in fields(row_type)}


def read_rows(path: Path, row_type: type[Row], *, unique: str | None = None) -> list[Row]:
    """Read all rows in the order in which they were written; empty without a file.

    Args:
        path: of the CSV file.
        row_type: a dataclass whose attributes are `int`, `float`, `str` or `float | None`. It
            raises a `ValueError` for values that a run cannot have.
        unique: a column that has another value in each row; None for none.

    Raises:
        InputError: if the file is damaged, or another version wrote it.
    """
    if not path.exists():
        return []
    with _open(path) as reader:
        return list(_rows(path, reader, row_type, unique))


@contextmanager
def _open(path: Path) -> Iterator[csv.DictReader[str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # editors may add a BOM
            yield csv.DictReader(file)
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a table of runs ({error}); use another folder") from None


def _rows(
    path: Path, reader: csv.DictReader[str], row_type: type[Row], unique: str | None
) -> Iterator[Row]:
    types = column_types(row_type)
    _check_columns(path, reader.fieldnames or (), tuple(types))
    first: dict[_Cell, int] = {}
    for cells in reader:
        number = reader.line_num
        try:
            row = row_type(**_parsed(cells, types))
        except ValueError as error:
            raise InputError(
                f"{path}: line {number} is damaged ({error}); delete the line"
            ) from None
        if unique and first.setdefault(value := getattr(row, unique), number) != number:
            raise InputError(
                f"{path}: line {number} has the same run as line {first[value]} "
                f"({unique} {value}); delete one of them"
            )
        yield row


def _check_columns(path: Path, found: Sequence[str], columns: Sequence[str]) -> None:
    """Refuse a file without these columns, in this order."""
    if list(found) == list(columns):
        return
    if not found:
        raise InputError(f"{path}: is empty; restore a copy, or delete it")
    wrong = "its columns have another order"
    if missing := [name for name in columns if name not in found]:
        wrong = f"no column {missing[0]}"
    elif unknown := [name for name in found if name not in columns]:
        wrong = f"unknown column {unknown[0]!r:.40}"
    raise InputError(
        f"{path}: {wrong}; restore a copy, or use another folder if another version wrote it"
    )


def _parsed(
    cells: Mapping[str, str | None], types: Mapping[str, Callable[[str], _Cell]]
) -> dict[str, _Cell]:
    """Convert the cells of a row; the error of a wrong one is a `ValueError`."""
    if None in cells or None in cells.values():
        raise ValueError(f"it does not have {len(types)} cells")
    return {name: _convert(name, cells[name], convert) for name, convert in types.items()}


def _convert(name: str, text: str, convert: Callable[[str], _Cell]) -> _Cell:
    try:
        return convert(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r:.40}, not a number") from None


def write_rows(path: Path, rows: Iterable[object], row_type: type) -> None:
    """Write a file; if this fails, the old one stays unchanged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(column_types(row_type)))
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def append_rows(path: Path, rows: Sequence[object]) -> None:
    """Add rows of one type; if this fails, the old file stays unchanged."""
    row_type = type(rows[0])
    write_rows(path, [*read_rows(path, row_type), *rows], row_type)


STATUSES = ("done", "diverged")
SPLITS = ("test", "validation")


@dataclass(frozen=True, kw_only=True)
class Result:
    """One row of the results table: a finished run.

    Attributes:
        run_id: name of its folder in `runs/`.
        config_hash: hash of settings, data variant and data fingerprint; equal for equal runs.
        status: "done" or "diverged".
        data: name of the data set for readers.
        data_fingerprint: fingerprint of the given prepared data.
        variant: changes to the data, as text; empty for all of the data.
        train_rows: training rows per epoch.
        split: split of the scores, "test" or "validation".
        model: name of the architecture.
        mlp: widths of the hidden layers, such as "400-400-400".
        optimizer: "adam" or "adagrad".
        rule: scaling rule.
        clip: name of the clip that was used.
        update: "dense", "exact" or "lazy".
        batch_size: rows per step.
        base_batch_size: batch size of the unscaled rates.
        embedding_lr: learning rate of the tables, as used.
        dense_lr: learning rate of the other weights, as used.
        l2: as used.
        r: as used.
        zeta: as used.
        init_std: as used.
        warmup_epochs: as used.
        epochs: number of epochs.
        seed: seed of initialization and row order.
        auc: AUC after the last epoch, 0 to 1; NaN if it diverged.
        log_loss: log loss after the last epoch, in nats; NaN if it diverged.
        best_auc: AUC of the best epoch.
        best_epoch: number of the best epoch, counted from 1.
        seconds: training time of all epochs, without evaluation.
        rows_per_second: mean over all epochs.
        steps_per_epoch: number of steps per epoch.
        started: start of the run, UTC, ISO 8601.
        revision: git revision of this package, or its version.
        tensorflow: version of TensorFlow.
        hardware: name of the processor or GPU.
        load: running processes in the minute before the run began.
        versions: versions of Python and of the dependencies, as text; empty in older tables.
        auc_error: standard error of `auc` from the sampling of the scored rows (DeLong); NaN if a
            class has only one row; None if it diverged, and in older tables.
        beta_1: Adam's, as used; None in older tables, which have 0.9.
        beta_2: Adam's, as used; None in older tables, which have 0.999.
        epsilon: Adam's, as used; None in older tables, which have 1e-7.
        targets: with several labels, the scores of each as JSON; the columns before have those of
            the first one, which decides.
    """

    run_id: str
    config_hash: str
    status: str
    data: str
    data_fingerprint: str
    variant: str
    train_rows: int
    split: str
    model: str
    mlp: str
    optimizer: str
    rule: str
    clip: str
    update: str
    batch_size: int
    base_batch_size: int
    embedding_lr: float
    dense_lr: float
    l2: float
    r: float
    zeta: float
    init_std: float
    warmup_epochs: float
    epochs: int
    seed: int
    auc: float
    log_loss: float
    best_auc: float
    best_epoch: int
    seconds: float
    rows_per_second: float
    steps_per_epoch: int
    started: str
    revision: str
    tensorflow: str
    hardware: str
    load: float
    versions: str
    auc_error: float | None
    beta_1: float | None
    beta_2: float | None
    epsilon: float | None
    targets: str

    def __post_init__(self) -> None:
        """Reject values that a run cannot have.

        Raises:
            ValueError: if there is one.
        """
        check_scores(self)
        scores_of_targets(self)
        if self.split not in SPLITS:
            raise ValueError(f"split is {self.split!r}, not {' or '.join(SPLITS)}")
        if not (math.isfinite(self.seconds) and self.seconds >= 0):
            raise ValueError(f"seconds is {self.seconds}, not a number from 0 on")


def scores_of_targets(result: Result) -> dict[str, dict[str, float]]:
    """Return label -> name of a metric -> its value; {} with one label.

    Raises:
        ValueError: if the column is damaged.

    >>> scores_of_targets(example_result(targets='{"buy": {"auc": 0.7}}'))
    {'buy': {'auc': 0.7}}
    """
    found = json.loads(result.targets or "{}")  # its error is a ValueError
    for scores in found.values() if isinstance(found, dict) else [found]:
        if not isinstance(scores, dict) or not all(isinstance(x, float) for x in scores.values()):
            raise ValueError(f"targets is {result.targets!r:.40}, not the scores of labels")
    return found


def check_scores(result: Result | ReplayResult) -> None:
    """Reject an unknown status, and scores that a finished run cannot have.

    Raises:
        ValueError: if there is one.
    """
    if result.status not in STATUSES:
        raise ValueError(f"status is {result.status!r}, not {' or '.join(STATUSES)}")
    if result.status == "diverged":
        return
    if not 0 <= result.auc <= 1:
        raise ValueError(f"auc is {result.auc}, not from 0 to 1")
    if not (math.isfinite(result.log_loss) and result.log_loss >= 0):
        raise ValueError(f"log_loss is {result.log_loss}, not a number from 0 on")


def example_result(**changed: Any) -> Result:
    """Return a result with made-up values, for examples and tests."""
    blank = {name: convert() for name, convert in column_types(Result).items()}
    return Result(**blank | {"status": "done", "split": "test", "auc": 0.78} | changed)


@dataclass(frozen=True, kw_only=True)
class ReplayResult:
    """One row of `replays.csv`: a finished replay, scored at one sync interval.

    Attributes:
        run_id: name of its folder in `runs/`.
        config_hash: hash of settings, columns with their rules, and the log; not of `sync`.
        sync: event time between two syncs of the serving copy, or "never".
        status: "done" or "diverged".
        data: name of the log for readers.
        data_fingerprint: fingerprint of the log.
        admit: occurrences after which an id gets a row; by column where they differ.
        ttl: seconds after which an unseen id loses its row, 0 for never; by column likewise.
        model: name of the architecture.
        mlp: widths of the hidden layers, such as "100-100".
        embedding_dim: length of an embedding row.
        rule: scaling rule.
        clip: name of the clip that was used.
        batch_size: events per step.
        base_batch_size: batch size of the unscaled rates.
        embedding_lr: learning rate of the tables, as used.
        dense_lr: learning rate of the other weights, as used.
        l2: as used.
        r: as used.
        zeta: as used.
        init_std: as used.
        batch_days: days that were only trained.
        seed: seed of all initial values.
        auc: AUC over all scored events, 0 to 1; NaN if it diverged.
        log_loss: over the same events, in nats; NaN if it diverged.
        scored: scored events.
        events: trained events.
        damaged: rows of the log that could not be read.
        ids_kept: ids that have a row at the end, over all columns.
        refused: occurrences of ids that were not admitted.
        expired: ids dropped by their time to live.
        evicted: ids dropped by the bound on rows.
        seconds: time of the whole replay, with all of its serving copies.
        rows_per_second: mean over the replay.
        started: start of the run, UTC, ISO 8601.
        revision: git revision of this package, or its version.
        tensorflow: version of TensorFlow.
        hardware: name of the processor.
        load: running processes in the minute before the run began.
        versions: versions of Python and of the dependencies.
    """

    run_id: str
    config_hash: str
    sync: str
    status: str
    data: str
    data_fingerprint: str
    admit: str
    ttl: str
    model: str
    mlp: str
    embedding_dim: int
    rule: str
    clip: str
    batch_size: int
    base_batch_size: int
    embedding_lr: float
    dense_lr: float
    l2: float
    r: float
    zeta: float
    init_std: float
    batch_days: float
    seed: int
    auc: float
    log_loss: float
    scored: int
    events: int
    damaged: int
    ids_kept: int
    refused: int
    expired: int
    evicted: int
    seconds: float
    rows_per_second: float
    started: str
    revision: str
    tensorflow: str
    hardware: str
    load: float
    versions: str

    def __post_init__(self) -> None:
        """Reject values that a run cannot have.

        Raises:
            ValueError: if there is one.
        """
        check_scores(self)


def read_replays(folder: Path) -> list[ReplayResult]:
    """Read all replays of a results folder in the order in which they ended.

    Raises:
        InputError: if the table is damaged, or another version wrote it.
    """
    return read_rows(folder / REPLAYS_CSV, ReplayResult)


def read_results(folder: str | Path) -> list[Result]:
    """Read all runs of a results folder in the order in which they ended; empty without a table.

    Raises:
        InputError: if the table is damaged, or another version wrote it.
    """
    return read_rows(Path(folder) / RESULTS_CSV, Result, unique="config_hash")


def write_results(folder: str | Path, results: Iterable[Result]) -> None:
    """Write the table; if this fails, the old table stays unchanged."""
    write_rows(Path(folder) / RESULTS_CSV, results, Result)


def append_result(folder: str | Path, result: Result) -> None:
    """Add one run; replace an earlier run with the same hash.

    >>> import tempfile
    >>> from cowclip_merlin.experiments.results.result import example_result
    >>> folder = tempfile.mkdtemp()
    >>> append_result(folder, example_result())
    >>> append_result(folder, example_result(auc=0.79))
    >>> [r.auc for r in read_results(folder)]
    [0.79]
    """
    kept = [r for r in read_results(folder) if r.config_hash != result.config_hash]
    write_results(folder, [*kept, result])
