"""Read and write the results table `results.csv`, with one row per finished run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cowclip_merlin.experiments.results.csv_table import read_rows, write_rows
from cowclip_merlin.experiments.results.result import Result
from cowclip_merlin.system.folders import RESULTS_CSV


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
