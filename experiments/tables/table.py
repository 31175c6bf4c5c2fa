"""Define a table of the paper with our numbers: means, spreads and verdicts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cowclip_merlin.experiments.definitions import Experiment, LogExperiment

NOISE = 2.0


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One number of a table.

    Attributes:
        text: shown if nothing was measured: "not run", "diverged", or a plain value.
        mean: mean over the seeds, in the table's unit; None if nothing was measured.
        spread: sample standard deviation over the seeds; None with fewer than two.
        runs: number of seeds.
        published: the paper's number, in the same unit; None if there is none.
        verdict: comparison with the reference: "better", "worse", "noise", or "" without one.
        note: note for readers about this number, such as a misprint.
    """

    text: str = "not run"
    mean: float | None = None
    spread: float | None = None
    runs: int = 0
    published: float | None = None
    verdict: str = ""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table, ready to print or write.

    Attributes:
        name: name of the experiment.
        title: title in one line.
        claim: the paper's claim.
        unit: of all numbers, such as "AUC %".
        corner: heading of the first column, such as "rule".
        columns: headings.
        rows: heading and cells of each row, as many cells as columns.
        data: name of the data set and its size.
        reference: label and batch of the cell that verdicts compare with; may be empty.
        notes: lines below the table.
        missing: runs that were not made, and why.
        command: the command that reproduces it.
        fingerprint: fingerprint of the data; empty for a table that no data changes.
        decimals: digits after the decimal point.
        decimals_of_columns: the same for each column, where they differ; empty otherwise.
        on_log: whether the experiment replays a log, and verdicts are of gains over the reference.
    """

    name: str
    title: str
    claim: str
    unit: str
    corner: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    data: str = ""
    reference: str = ""
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    command: str = ""
    fingerprint: str = ""
    decimals: int = 2
    decimals_of_columns: tuple[int, ...] = ()
    on_log: bool = False

    def column_decimals(self) -> tuple[int, ...]:
        """Return the digits after the decimal point of each column."""
        return self.decimals_of_columns or (self.decimals,) * len(self.columns)


def experiment_table(
    experiment: Experiment | LogExperiment, *, notes: Sequence[str] = (), **rest: Any
) -> Table:
    """Make a table with the name, title, claim, corner and notes of its experiment.

    Args:
        experiment: the experiment.
        notes: lines below the table, after the experiment's own.
        rest: the other attributes of `Table`.
    """
    return Table(
        name=experiment.name,
        title=experiment.title,
        claim=experiment.claim,
        corner=experiment.corner,
        notes=(*experiment.notes, *notes),
        **rest,
    )


def mean_cell(values: Sequence[float], **known: object) -> Cell:
    """Make the cell of runs that differ only in their seed.

    >>> mean_cell([80.0, 81.0]).mean
    80.5
    """
    spread = statistics.stdev(values) if len(values) > 1 else None
    return Cell(mean=statistics.fmean(values), spread=spread, runs=len(values), **known)


def verdict(cell: Cell, reference: Cell, *, higher_is_better: bool = True) -> str:
    """Judge whether two means differ by more than `NOISE` standard errors of their difference.

    Returns:
        "better", "worse" or "noise"; "" if a mean or a spread is missing.

    >>> verdict(mean_cell([80.0, 80.2]), mean_cell([70.0, 70.2]))
    'better'
    """
    if None in (cell.mean, cell.spread, reference.mean, reference.spread):
        return ""
    error = math.sqrt(cell.spread**2 / cell.runs + reference.spread**2 / reference.runs)
    difference = cell.mean - reference.mean
    if abs(difference) <= NOISE * error:
        return "noise"
    return "better" if (difference > 0) == higher_is_better else "worse"
