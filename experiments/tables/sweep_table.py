"""Make the table of a sweep: its points with their scores, best first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cowclip_merlin.experiments.definitions import Experiment
from cowclip_merlin.experiments.planning.grid import expand_sweep
from cowclip_merlin.experiments.planning.planned_run import RunResults
from cowclip_merlin.experiments.planning.sizing import Sizing
from cowclip_merlin.experiments.planning.sweep import Scores, mean_score, validation_scores
from cowclip_merlin.experiments.tables.run_table import (
    DECIMALS,
    cells_of,
    column_heading,
    unit_of,
)
from cowclip_merlin.experiments.tables.table import Cell, Table, experiment_table, mean_cell

_NOTES = (
    "Scored on validation rows; test rows are not used.",
    "Neighbors of the two best points were tried until no neighbor was better.",
)


def sweep_table(sweep: Experiment, sizing: Sizing, results: RunResults, **texts: str) -> Table:
    """Make the table: one row per point, one column per batch, and one for their mean.

    Args:
        sweep: the sweep.
        sizing: batches of the runs.
        results: results of the finished runs.
        texts: `data`, `command` and `fingerprint` of `Table`.
    """
    scores, multipliers = validation_scores(results), sweep.lines[0].multipliers
    several = len(multipliers) > 1
    return experiment_table(
        sweep,
        unit="validation AUC %",
        columns=(*(column_heading(m, sizing) for m in multipliers), *["mean"] * several),
        rows=tuple(
            (label, _cells(scores.get(label, {}), multipliers)) for label in _order(sweep, scores)
        ),
        notes=_NOTES,
        **texts,
    )


def sweep_label_table(
    sweep: Experiment, sizing: Sizing, results: RunResults, order: Sequence[str], **texts: str
) -> Table:
    """Make the table of a label that is not the first one, which chooses the best point.

    Args:
        sweep: the sweep, with the measure of this label.
        sizing: batches of the runs.
        results: results of the finished runs, for this label.
        order: labels of the rows, as in the table of the first label.
        texts: `data`, `command` and `fingerprint` of `Table`.
    """
    line = sweep.lines[0]
    lines = [replace(line, label=label) for label in order]
    cells = cells_of(sweep.measure, lines, line.multipliers, results)
    return experiment_table(
        sweep,
        unit=f"validation {unit_of(sweep)}",
        columns=tuple(column_heading(m, sizing) for m in line.multipliers),
        rows=tuple((label, tuple(cells[label, m] for m in line.multipliers)) for label in order),
        notes=(_NOTES[0], "The first label decides which point is the best, and the order."),
        decimals=DECIMALS[sweep.measure],
        **texts,
    )


def _order(sweep: Experiment, scores: Scores) -> list[str]:
    """Sort labels of all points, best first, then those of the grid without a score."""
    scored = sorted(scores, key=lambda label: -mean_score(scores[label]))
    return scored + [line.label for line in expand_sweep(sweep).lines if line.label not in scores]


def _cells(
    scores: Mapping[int | str, list[float]], multipliers: Sequence[int | str]
) -> tuple[Cell, ...]:
    cells = [
        mean_cell([100 * auc for auc in scores[m]]) if m in scores else Cell() for m in multipliers
    ]
    if len(multipliers) == 1:
        return tuple(cells)
    if len(scores) < len(multipliers):
        return (*cells, Cell())
    seeds = min(map(len, scores.values()))
    return (*cells, Cell(mean=100 * mean_score(scores), runs=seeds))
