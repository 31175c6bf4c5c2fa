"""Make tables of training runs: one row per line of the experiment, one column per batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cowclip_merlin.experiments.definitions import (
    MEASURES,
    NAMED_MULTIPLIERS,
    RMSE,
    Experiment,
    ExperimentLine,
)
from cowclip_merlin.experiments.planning.plan import describe_infeasible, feasible_multipliers
from cowclip_merlin.experiments.planning.planned_run import RunResults
from cowclip_merlin.experiments.planning.sizing import Sizing
from cowclip_merlin.experiments.results.result import Result
from cowclip_merlin.experiments.tables.table import (
    Cell,
    Table,
    experiment_table,
    mean_cell,
    verdict,
)

UNITS = {"auc": 100.0, "log_loss": 1.0, "minutes": 1 / 60, RMSE: 1.0}
DECIMALS = {"auc": 2, "log_loss": 4, "minutes": 2, RMSE: 4}
Cells = Mapping[tuple[str, int | str], Cell]
"""Label of the line and multiplier -> cell."""


def run_table(experiment: Experiment, sizing: Sizing, results: RunResults, **texts: str) -> Table:
    """Make the table of an experiment of kind "runs".

    Args:
        experiment: the experiment.
        sizing: batches of the runs.
        results: results of the finished runs.
        texts: `data`, `command` and `fingerprint` of `Table`.
    """
    multipliers = _multipliers(experiment, sizing)
    cells = cells_of(experiment.measure, experiment.lines, multipliers, results)
    cells = _judged(experiment, cells)
    missing = (*describe_infeasible(experiment, sizing), *_not_run(experiment, sizing, results))
    return experiment_table(
        experiment,
        unit=unit_of(experiment),
        columns=_headings(multipliers, sizing),
        rows=tuple(
            (line.label, tuple(cells[line.label, m] for m in multipliers))
            for line in experiment.lines
        ),
        reference=_reference(experiment, sizing),
        notes=[*_notes_of_cells(experiment), *_sampling_note(experiment, results)],
        missing=missing,
        decimals=DECIMALS[experiment.measure],
        **texts,
    )


def _multipliers(experiment: Experiment, sizing: Sizing) -> list[int | str]:
    """Return all multipliers of the lines, in order of size."""
    every = {m for line in experiment.lines for m in line.multipliers}
    return sorted(every, key=lambda m: (sizing.factor(m), str(m)))


def _headings(multipliers: Sequence[int | str], sizing: Sizing) -> tuple[str, ...]:
    """Return the columns' headings; add the name if a named multiplier repeats another one."""
    plain = [column_heading(m, sizing) for m in multipliers]
    return tuple(
        f"{text} ({m})" if m in NAMED_MULTIPLIERS and plain.count(text) > 1 else text
        for m, text in zip(multipliers, plain)
    )


def column_heading(multiplier: int | str, sizing: Sizing) -> str:
    """Format the multiplier and the batch at this size: `x8 = 2,048`."""
    return f"x{sizing.factor(multiplier)} = {sizing.batch(multiplier):,}"


def cells_of(
    measure: str,
    lines: Sequence[ExperimentLine],
    multipliers: Sequence[int | str],
    results: RunResults,
) -> Cells:
    """Return the cell of each line and multiplier.

    Args:
        measure: a name of `MEASURES`, or `RMSE`.
        lines: rows of the table.
        multipliers: its columns.
        results: results of the finished runs.
    """
    by_cell: dict[tuple[str, int | str], list[Result]] = {}
    for run, result in results.items():
        by_cell.setdefault((run.label, run.multiplier), []).append(result)
    return {
        (line.label, m): _cell(measure, line, m, by_cell.get((line.label, m), []))
        for line in lines
        for m in multipliers
    }


def _cell(
    measure: str, line: ExperimentLine, multiplier: int | str, results: Sequence[Result]
) -> Cell:
    published = line.published.get(multiplier)
    known = {"published": published, "note": line.notes.get(multiplier, "")}
    if multiplier not in line.multipliers:
        return Cell(text="", **known)
    if not results:
        return Cell(**known)
    if any(result.status == "diverged" for result in results):
        return Cell(text="diverged", runs=len(results), **known)
    return mean_cell([_value(measure, result) for result in results], **known)


def unit_of(experiment: Experiment) -> str:
    """Return the unit of a table of an experiment, for its head."""
    return "RMSE" if experiment.measure == RMSE else MEASURES[experiment.measure]


def _value(measure: str, result: Result) -> float:
    value = result.seconds if measure == "minutes" else getattr(result, measure)
    return UNITS[measure] * value


def _judged(experiment: Experiment, cells: Cells) -> Cells:
    """Add verdicts to the cells, but not to lines with other ids than the reference."""
    if experiment.reference is None:
        return cells
    reference = cells[tuple(experiment.reference)]
    better = experiment.measure == "auc"
    ids = {line.label: line.keep_top for line in experiment.lines}
    return {
        (label, multiplier): cell
        if cell is reference or ids[label] != ids[experiment.reference[0]]
        else replace(cell, verdict=verdict(cell, reference, higher_is_better=better))
        for (label, multiplier), cell in cells.items()
    }


def _reference(experiment: Experiment, sizing: Sizing) -> str:
    if experiment.reference is None:
        return ""
    label, multiplier = experiment.reference
    return f"{label} at batch {sizing.batch(multiplier):,}"


def _notes_of_cells(experiment: Experiment) -> list[str]:
    return [
        f"{line.label}, x{multiplier}: {text}"
        for line in experiment.lines
        for multiplier, text in line.notes.items()
    ]


def _sampling_note(experiment: Experiment, results: RunResults) -> list[str]:
    """Say how much other test rows would change an AUC; the spread over seeds lacks this."""
    known = [r.auc_error for r in results.values() if r.auc_error is not None]
    errors = [UNITS["auc"] * error for error in known if math.isfinite(error)]
    if experiment.measure != "auc" or not errors:
        return []
    least, most = (f"{error:.{DECIMALS['auc']}f}" for error in (min(errors), max(errors)))
    size = least if least == most else f"{least} to {most}"
    return [
        f"Standard error of one AUC from the sampling of the scored rows (DeLong): {size} points. "
        "All seeds score the same rows, so ± does not contain it."
    ]


def _not_run(experiment: Experiment, sizing: Sizing, results: RunResults) -> Sequence[str]:
    done = {(run.label, run.multiplier) for run in results}
    return [
        f"{line.label} at x{sizing.factor(m)}: not run yet"
        for line in experiment.lines
        for m in feasible_multipliers(line, sizing)
        if (line.label, m) not in done
    ]
