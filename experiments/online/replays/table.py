"""Make the table of an experiment that replays a log: one row for each line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cowclip_merlin.experiments.definitions import LogExperiment, ReplayLine
from cowclip_merlin.experiments.online.replays.result import ReplayResult
from cowclip_merlin.experiments.online.replays.run import LineResults
from cowclip_merlin.experiments.tables.table import (
    Cell,
    Table,
    experiment_table,
    mean_cell,
    verdict,
)

UNIT = "units in the headings"
_ZERO = Cell(mean=0.0, spread=0.0, runs=1)
_DECIMALS = {"auc": 3, "gain": 3, "log_loss": 4, "ids_kept": 0}
_COLUMNS = {
    "sync": ("auc", "gain", "log_loss"),
    "rules": ("ids_kept", "auc", "gain", "log_loss"),
}
"""Kind of experiment -> measures in its columns."""


def replay_table(
    experiment: LogExperiment, results: LineResults, *, seeds: int, **texts: str
) -> Table:
    """Make the table of an experiment of kind "sync" or "rules".

    Gains are differences from the reference line with the same seed. Their verdict says whether
    the mean gain differs from 0.

    Args:
        experiment: the experiment.
        results: its existing results.
        seeds: runs that each line should have.
        texts: other attributes of the table.
    """
    headings = {
        "auc": "AUC, %",
        "gain": f"gain over {experiment.reference!r}, points",
        "log_loss": "log loss",
        "ids_kept": "ids kept",
    }
    measures = _COLUMNS[experiment.kind]
    rows = tuple(
        (line.label, tuple(_cell(experiment, line, results, measure) for measure in measures))
        for line in experiment.lines
    )
    return experiment_table(
        experiment,
        notes=[f"{line.label}: {line.note}" for line in experiment.lines if line.note],
        unit=UNIT,
        columns=tuple(headings[measure] for measure in measures),
        rows=rows,
        reference=experiment.reference,
        missing=tuple(
            f"{line.label}: {seeds - len(results[line.label])} of {seeds} seeds"
            for line in experiment.lines
            if len(results[line.label]) < seeds
        ),
        on_log=True,
        decimals_of_columns=tuple(_DECIMALS[measure] for measure in measures),
        **texts,
    )


def _cell(experiment: LogExperiment, line: ReplayLine, results: LineResults, measure: str) -> Cell:
    published = line.published.get(measure)
    note = line.note if published is not None and line.note else ""
    known: dict[str, Any] = {"published": published, "note": note}
    mine = results[line.label]
    if measure == "gain":
        if line.label == experiment.reference:
            return Cell(text="", **known)
        return _gain(mine, results[experiment.reference], known)
    if not mine:
        return Cell(**known)
    if any(result.status == "diverged" for result in mine.values()):
        return Cell(text="diverged", runs=len(mine), **known)
    values = [getattr(result, measure) for result in mine.values()]
    return mean_cell([100 * v for v in values] if measure == "auc" else values, **known)


def _gain(
    mine: Mapping[int, ReplayResult],
    reference: Mapping[int, ReplayResult],
    known: Mapping[str, Any],
) -> Cell:
    """Return the cell of paired differences in AUC points, with a verdict."""
    pairs = [(mine[seed], reference[seed]) for seed in mine if seed in reference]
    if not pairs:
        return Cell(**known)
    if any("diverged" in (one.status, other.status) for one, other in pairs):
        return Cell(text="diverged", runs=len(pairs), **known)
    cell = mean_cell([100 * (one.auc - other.auc) for one, other in pairs], **known)
    return replace(cell, verdict=verdict(cell, _ZERO))
