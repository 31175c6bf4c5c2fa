"""Read and write the results table `results.csv`, with one row per finished run."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.results.csv_table import check_columns, open_table, parse_cells
from cowclip_merlin.experiments.results.result import COLUMN_TYPES, LATER_COLUMNS, Result
from cowclip_merlin.system.files import atomic_write
from cowclip_merlin.system.folders import RESULTS_CSV

STATUSES = ("done", "diverged")
SPLITS = ("test", "validation")
COLUMNS = tuple(COLUMN_TYPES)
_FEWEST_COLUMNS = len(COLUMNS) - len(LATER_COLUMNS)


def read_results(folder: str | Path) -> list[Result]:
    """Read all runs of a results folder in the order in which they ended; empty without a table.

    Raises:
        InputError: if the table is damaged, or another version wrote it.
    """
    path = Path(folder) / RESULTS_CSV
    if not path.exists():
        return []
    with open_table(path) as reader:
        return list(_results(path, reader))


def _results(path: Path, reader: csv.DictReader[str]) -> Iterator[Result]:
    check_columns(path, reader.fieldnames or (), COLUMNS, fewest=_FEWEST_COLUMNS)
    first: dict[str, int] = {}
    for row in reader:
        number = reader.line_num
        result = _result(path, number, dict.fromkeys(LATER_COLUMNS, "") | row)
        if first.setdefault(result.config_hash, number) != number:
            raise InputError(
                f"{path}: line {number} has the same run as line {first[result.config_hash]} "
                f"(config_hash {result.config_hash}); delete one of them"
            )
        yield result


def _result(path: Path, number: int, row: Mapping[str, str]) -> Result:
    try:
        result = Result(**parse_cells(row, COLUMN_TYPES))
        _check(result)
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: line {number} is damaged ({error}); delete the line") from None
    return result


def _check(result: Result) -> None:
    """Reject values that a run cannot have.

    Raises:
        ValueError: if a column cannot have this value.
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
    """Write the table; if this fails, the old table stays unchanged."""
    path = Path(folder) / RESULTS_CSV
    with atomic_write(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(asdict(result) for result in results)


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
