"""The results table: one row per finished run, in `results.csv` of a results folder."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from cowclip_merlin.errors import InputError
from cowclip_merlin.system.files import replacing


@dataclass(frozen=True, kw_only=True)
class Result:
    """One run that ended.

    Attributes:
        run_id: name of its folder below `runs/`.
        config_hash: of settings, data variant and data fingerprint; equal runs have equal ones.
        status: "done" or "diverged".
        data: name of the data set, as a reader should see it.
        data_fingerprint: of the prepared data that was given.
        variant: what was changed in it, as text; empty for nothing.
        train_rows: rows trained on, an epoch.
        split: what the scores are of, "test" or "validation".
        model: name of the architecture.
        mlp: widths of its hidden layers, such as "400-400-400".
        optimizer: "adam" or "adagrad".
        rule: scaling rule.
        clip: the clip in force.
        update: "dense", "exact" or "lazy".
        batch_size: rows a step.
        base_batch_size: where the rates hold before scaling.
        embedding_lr: of the tables, as used.
        dense_lr: of the other weights, as used.
        l2: as used.
        r: as used.
        zeta: as used.
        init_std: as used.
        warmup_epochs: as used.
        epochs: passes.
        seed: of initialisation and row order.
        auc: after the last epoch, 0 to 1; NaN if it diverged.
        log_loss: after the last epoch, in nats; NaN if it diverged.
        best_auc: of the best epoch.
        best_epoch: counted from 1.
        seconds: of training, all epochs, scoring left out.
        rows_per_second: mean over all epochs.
        steps_per_epoch: steps.
        started: UTC, ISO 8601.
        revision: git revision of this package, or its version.
        tensorflow: version.
        hardware: processor or GPU, in words.
        load: running processes in the minute before the run began.
        versions: of Python and of the packages that it stands on, as text; empty in tables of
            before they were kept.
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
    versions: str = ""


STATUSES = ("done", "diverged")
SPLITS = ("test", "validation")
COLUMNS = tuple(field.name for field in fields(Result))
_WITHOUT_VERSIONS = COLUMNS[:-1]
_KINDS = {"int": int, "float": float, "str": str}
_CONVERT = {field.name: _KINDS[str(field.type)] for field in fields(Result)}


def read_results(folder: str | Path) -> list[Result]:
    """All runs of a results folder in the order in which they ended; none if it has none.

    Raises:
        InputError: the table is damaged or of another version.
    """
    path = Path(folder) / "results.csv"
    if not path.exists():
        return []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(_results(path, csv.DictReader(file)))
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path}: no table of runs ({error}); use another folder") from None


def _results(path: Path, reader: csv.DictReader[str]) -> Iterator[Result]:
    if tuple(reader.fieldnames or ()) not in (COLUMNS, _WITHOUT_VERSIONS):
        raise InputError(f"{path}: its columns are not those of this version; use another folder")
    first: dict[str, int] = {}
    for row in reader:
        number = reader.line_num
        result = _result(path, number, {"versions": ""} | row)
        if first.setdefault(result.config_hash, number) != number:
            raise InputError(
                f"{path}: line {number} is of the same run as line {first[result.config_hash]} "
                f"(config_hash {result.config_hash}); delete one of them"
            )
        yield result


def _result(path: Path, number: int, row: Mapping[str, str]) -> Result:
    try:
        if None in row or None in row.values():
            raise ValueError(f"it has not {len(COLUMNS)} cells")
        result = Result(**{name: convert(row[name]) for name, convert in _CONVERT.items()})
        _check(result)
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: line {number} is damaged ({error}); delete the line") from None
    return result


def _check(result: Result) -> None:
    """Refuse what no run can have written.

    Raises:
        ValueError: a value is none of those that its column can have.
    """
    for name, known in (("status", STATUSES), ("split", SPLITS)):
        if getattr(result, name) not in known:
            raise ValueError(f"{name} is {getattr(result, name)!r}, not {' or '.join(known)}")
    if result.status == "done" and not 0 <= result.auc <= 1:
        raise ValueError(f"auc is {result.auc}, not from 0 to 1")
    if result.status == "done" and not (math.isfinite(result.log_loss) and result.log_loss >= 0):
        raise ValueError(f"log_loss is {result.log_loss}, not a number from 0 on")
    if not (math.isfinite(result.seconds) and result.seconds >= 0):
        raise ValueError(f"seconds is {result.seconds}, not a number from 0 on")


def write_results(folder: str | Path, results: Iterable[Result]) -> None:
    """Write the whole table, whole or not at all."""
    path = Path(folder) / "results.csv"
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(asdict(result) for result in results)


def append_result(folder: str | Path, result: Result) -> None:
    """Add one run; an earlier one with the same hash is replaced.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> append_result(folder, example())
    >>> append_result(folder, example(auc=0.79))
    >>> [r.auc for r in read_results(folder)]
    [0.79]
    """
    kept = [r for r in read_results(folder) if r.config_hash != result.config_hash]
    write_results(folder, [*kept, result])


def example(**changed: Any) -> Result:
    """A result with made-up values, for examples and tests."""
    blank = {name: kind() for name, kind in _CONVERT.items()}
    return Result(**blank | {"status": "done", "split": "test", "auc": 0.78} | changed)
