"""A results folder: rows of finished runs, tuned values, and whether its files may be replaced."""

from __future__ import annotations

import csv
import glob
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.files import check_rates
from cowclip_merlin.system import records
from cowclip_merlin.system.files import read_json, write_json
from cowclip_merlin.system.folders import (
    PREPARED,
    REPLAYS_CSV,
    RESULTS,
    RESULTS_CSV,
    RUN,
    check_out,
    holds,
)
from cowclip_merlin.types import Json, JsonObject

STATUSES = ("done", "diverged")
SPLITS = ("test", "validation")


@dataclass(frozen=True, kw_only=True)
class Result:
    """One row of `results.csv`: a finished run on prepared data.

    Rates, `l2` and so on are those that were used, after scaling. Scores are of the last epoch, NaN
    if it diverged. If validation rows chose an epoch, scores are of the test rows after that epoch,
    and `best_auc` is of the validation rows. `seconds` are those of training, without evaluation.
    `auc_error` is the standard error from the sampling of the scored rows (DeLong); NaN if a class
    has only one row.
    """

    run_id: str  # name of its folder in `runs/`
    config_hash: str  # of settings, data variant and data fingerprint; equal for equal runs
    status: str
    data: str  # name for readers
    data_fingerprint: str  # of the given prepared data
    variant: str  # changes to the data; empty for all of the data
    train_rows: int
    split: str  # of the scores
    model: str
    mlp: str  # such as "400-400-400"
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
    started: str  # UTC, ISO 8601
    revision: str  # of git, or the version of this package
    tensorflow: str
    hardware: str
    load: float  # running processes in the minute before the run
    versions: str
    auc_error: float | None
    beta_1: float | None
    beta_2: float | None
    epsilon: float | None
    targets: str  # with several labels, the scores of each as JSON; `auc` is that of the first

    def __post_init__(self) -> None:
        """Refuse, by a `ValueError`, values that a run cannot have."""
        _check_scores(self)
        scores_of_targets(self)
        if self.split not in SPLITS:
            raise ValueError(f"split is {self.split!r}, not {' or '.join(SPLITS)}")
        if not (math.isfinite(self.seconds) and self.seconds >= 0):
            raise ValueError(f"seconds is {self.seconds}, not a number from 0 on")


@dataclass(frozen=True, kw_only=True)
class ReplayResult:
    """One row of `replays.csv`: a finished replay of a log, scored at one sync interval."""

    run_id: str
    config_hash: str  # of settings, columns with their rules, and the log; not of `sync`
    sync: str
    status: str
    data: str
    data_fingerprint: str
    admit: str  # by column where they differ
    ttl: str  # in seconds, 0 for never; by column where they differ
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
    batch_days: float  # that were only trained
    seed: int
    auc: float
    log_loss: float
    scored: int
    events: int
    damaged: int
    ids_kept: int  # that have a row at the end, over all columns
    refused: int  # occurrences of ids that were not admitted
    expired: int  # ids
    evicted: int  # ids
    seconds: float  # of the whole replay
    rows_per_second: float
    started: str
    revision: str
    tensorflow: str
    hardware: str
    load: float
    versions: str

    def __post_init__(self) -> None:
        """Refuse, by a `ValueError`, values that a run cannot have."""
        _check_scores(self)


def _check_scores(result: Result | ReplayResult) -> None:
    if result.status not in STATUSES:
        raise ValueError(f"status is {result.status!r}, not {' or '.join(STATUSES)}")
    if result.status == "diverged":
        return
    if not 0 <= result.auc <= 1:
        raise ValueError(f"auc is {result.auc}, not from 0 to 1")
    if not (math.isfinite(result.log_loss) and result.log_loss >= 0):
        raise ValueError(f"log_loss is {result.log_loss}, not a number from 0 on")


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


def example_result(**changed: Any) -> Result:
    """Return a result with made-up values, for examples and tests."""
    blank = {name: convert() for name, convert in _column_types(Result).items()}
    return Result(**blank | {"status": "done", "split": "test", "auc": 0.78} | changed)


Row = TypeVar("Row")
_Cell: TypeAlias = "int | float | str | None"
_TYPES: Mapping[str, Callable[..., _Cell]] = {
    "int": int,
    "float": float,
    "str": str,
    "float | None": lambda text="": float(text) if text else None,
}


def _column_types(row_type: type) -> dict[str, Callable[..., _Cell]]:
    return {field.name: _TYPES[str(field.type)] for field in fields(row_type)}


def read_rows(path: Path, row_type: type[Row], *, unique: str | None = None) -> list[Row]:
    """Read all rows in the order in which they were written; empty without a file.

    The row type is a dataclass with attributes of `_TYPES`. It raises a `ValueError` for values
    that a run cannot have. The column `unique` must have another value in each row.

    Raises:
        InputError: if the file is damaged, or another version wrote it.
    """
    if not path.exists():
        return []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # editors may add a BOM
            return list(_rows(path, csv.DictReader(file), row_type, unique))
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a table of runs ({error}); use another folder") from None


def _rows(
    path: Path, reader: csv.DictReader[str], row_type: type[Row], unique: str | None
) -> Iterator[Row]:
    types = _column_types(row_type)
    _check_columns(path, list(reader.fieldnames or ()), list(types))
    first: dict[_Cell, int] = {}
    for cells in reader:
        number = reader.line_num
        try:
            if None in cells or None in cells.values():
                raise ValueError(f"it does not have {len(types)} cells")
            row = row_type(**{name: _convert(name, cells[name], to) for name, to in types.items()})
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
    if found == columns:
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


def _convert(name: str, text: str, convert: Callable[[str], _Cell]) -> _Cell:
    try:
        return convert(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r:.40}, not a number") from None


def write_rows(path: Path, rows: Iterable[object], row_type: type) -> None:
    """Write a file; if this fails, the old one stays unchanged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    records.write_rows(path, list(_column_types(row_type)), map(asdict, rows))


def append_rows(path: Path, rows: Sequence[object]) -> None:
    """Add rows of one type; if this fails, the old file stays unchanged."""
    row_type = type(rows[0])
    write_rows(path, [*read_rows(path, row_type), *rows], row_type)


def read_replays(folder: Path) -> list[ReplayResult]:
    """Read all replays of a results folder in the order in which they ended."""
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


def check_results_folder(out: Path) -> None:
    """Refuse a path that is a file, prepared data or a run.

    A results folder may hold a copy of `dataset.json`: then it makes its tables without the data.

    Raises:
        InputError: if it is one of them.
    """
    others = () if holds(out, RESULTS) else (PREPARED, RUN)
    check_out(out, others, "use another `out` for the results")


def check_outputs_replaceable(out: Path, name: str, fingerprint: str) -> None:
    """Refuse to replace an experiment's table or figure of other data, or a file that is none.

    Raises:
        InputError: if the folder has such a file.
    """
    figures = (f"figures/{name}{end}.json" for end in ("", "_auc", "_over_time"))
    labels = sorted((out / "tables").glob(f"{glob.escape(name)}_label*.json"))
    for path in (out / f"tables/{name}.json", *(out / file for file in figures), *labels):
        if not path.is_file():
            continue
        try:
            value = read_json(path)
        except InputError as error:  # "write it again" is no remedy for the command that does so
            what, _, _ = str(error).rpartition("; ")
            raise InputError(f"{what}; delete it, and run the command again") from None
        if not isinstance(value, dict):
            raise InputError(f"{path}: is no table or figure; delete it, or use another `out`")
        before = value.get("fingerprint")
        if before and before != fingerprint:
            raise InputError(
                f"{path}: is of other data ({value.get('data')!s:.60}); use another `out`, or "
                "delete it"
            )


TunedValues = Mapping[str, Mapping[str, float]]
"""Group of lines -> name -> value at the base batch."""


def read_tuned(out: Path, key: str) -> TunedValues:
    """Read the values that sweeps chose for one data set and sizing; empty before a sweep.

    Raises:
        InputError: the file is damaged.
    """
    return _read_all_tuned(out / "tuned.json").get(key, {})


def tuned_by_size(out: Path, fingerprint: str) -> dict[str, TunedValues]:
    """Read the values that sweeps chose for this data set, by sizing.

    Raises:
        InputError: if the file is damaged.
    """
    every = _read_all_tuned(out / "tuned.json").items()
    parts = ((*key.partition(" "), tuned) for key, tuned in every)
    return {sizes: tuned for data, _, sizes, tuned in parts if data == fingerprint}


def _read_all_tuned(path: Path) -> dict[str, dict[str, dict[str, float]]]:
    """Read the values by fingerprint of the data, a space and the sizes; empty without a file."""
    every = read_json(path) if path.exists() else {}
    for of_data in _mapping(path, every).values():
        for values in _mapping(path, of_data).values():
            check_rates(path, "tuned values", _mapping(path, values))
    return every


def _mapping(path: Path, value: Json) -> JsonObject:
    if not isinstance(value, dict):
        raise InputError(
            f"{path}: has {value!r:.40} instead of a mapping; delete the file and sweep again"
        )
    return value


def write_tuned(out: Path, key: str, group: str, values: Mapping[str, float]) -> None:
    """Add the values of a sweep to those of other sweeps of its group."""
    path = out / "tuned.json"
    every = _read_all_tuned(path)
    mine = every.setdefault(key, {})
    mine[group] = {**mine.get(group, {}), **values}
    write_json(path, every)
