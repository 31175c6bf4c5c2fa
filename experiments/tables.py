"""From results to the paper's tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cowclip_merlin.experiments.definitions import (
    MEASURES,
    NAMED_MULTIPLIERS,
    Experiment,
    ExperimentLine,
)
from cowclip_merlin.experiments.plan import Run, allowed, factor, missing
from cowclip_merlin.experiments.regime import Regime
from cowclip_merlin.experiments.results import Result
from cowclip_merlin.experiments.table import Cell, Table, measured, table_of, verdict

UNITS = {"auc": 100.0, "log_loss": 1.0, "minutes": 1 / 60}
DECIMALS = {"auc": 2, "log_loss": 4, "minutes": 2}


def table_of_runs(
    experiment: Experiment,
    regime: Regime,
    results: Mapping[Run, Result],
    *,
    data: str,
    command: str,
) -> Table:
    """The table of an experiment of kind "runs": a row for each line, a column for each batch.

    Args:
        experiment: what is shown.
        regime: at which sizes.
        results: of the runs that were made.
        data: the data set in words.
        command: what makes the table again.
    """
    columns = _columns(experiment, regime)
    cells = {
        (line.label, s): _cell(experiment, line, s, results)
        for line in experiment.lines
        for s in columns
    }
    cells = _judged(experiment, cells)
    decimals = DECIMALS[experiment.measure]
    return table_of(
        experiment,
        unit=MEASURES[experiment.measure],
        columns=_headings(columns, regime),
        rows=tuple(
            (line.label, tuple(cells[line.label, s] for s in columns)) for line in experiment.lines
        ),
        data=data,
        reference=_reference(experiment, regime),
        notes=_notes_of_cells(experiment),
        missing=(*missing(experiment, regime), *_not_made(experiment, regime, results)),
        command=command,
        decimals=decimals,
    )


def _columns(experiment: Experiment, regime: Regime) -> list[int | str]:
    """All multipliers of the lines, in order of size."""
    every = {m for line in experiment.lines for m in line.multipliers}
    return sorted(every, key=lambda m: (factor(m, regime), str(m)))


def _headings(columns: Sequence[int | str], regime: Regime) -> tuple[str, ...]:
    """Of all columns; where the largest batch is another column's, too, it says so."""
    plain = [heading(s, regime) for s in columns]
    return tuple(
        f"{text} ({s})" if s in NAMED_MULTIPLIERS and plain.count(text) > 1 else text
        for s, text in zip(columns, plain)
    )


def heading(multiplier: int | str, regime: Regime) -> str:
    """`x8 = 2,048`: the multiplier, and the batch at this size."""
    s = factor(multiplier, regime)
    return f"x{s} = {s * regime.base_batch:,}"


def _cell(
    experiment: Experiment,
    line: ExperimentLine,
    multiplier: int | str,
    results: Mapping[Run, Result],
) -> Cell:
    published = line.published.get(multiplier)
    known = {"published": published, "note": line.notes.get(multiplier, "")}
    if multiplier not in line.multipliers:
        return Cell(text="", **known)
    mine = [
        r for run, r in results.items() if (run.label, run.multiplier) == (line.label, multiplier)
    ]
    values = [_value(experiment.measure, result) for result in mine]
    if not values:
        return Cell(**known)
    if any(result.status == "diverged" for result in mine):
        return Cell(text="diverged", runs=len(values), **known)
    return measured(values, **known)


def _value(measure: str, result: Result) -> float:
    attribute = {"auc": result.auc, "log_loss": result.log_loss, "minutes": result.seconds}
    return UNITS[measure] * attribute[measure]


def _judged(experiment: Experiment, cells: Mapping[Any, Cell]) -> dict[Any, Cell]:
    """The cells with their verdict against the reference cell; none of lines with fewer ids."""
    if experiment.reference is None:
        return dict(cells)
    reference = cells[tuple(experiment.reference)]
    better = experiment.measure == "auc"
    ids = {line.label: line.keep_top for line in experiment.lines}
    return {
        place: cell
        if cell is reference or ids[place[0]] != ids[experiment.reference[0]]
        else replace(cell, verdict=verdict(cell, reference, higher_is_better=better))
        for place, cell in cells.items()
    }


def _reference(experiment: Experiment, regime: Regime) -> str:
    if experiment.reference is None:
        return ""
    label, multiplier = experiment.reference
    return f"{label} at batch {factor(multiplier, regime) * regime.base_batch:,}"


def _notes_of_cells(experiment: Experiment) -> list[str]:
    return [
        f"{line.label}, x{multiplier}: {text}"
        for line in experiment.lines
        for multiplier, text in line.notes.items()
    ]


def _not_made(
    experiment: Experiment, regime: Regime, results: Mapping[Run, Result]
) -> Sequence[str]:
    made = {(run.label, run.multiplier) for run in results}
    return [
        f"{line.label} at x{factor(m, regime)}: not run yet"
        for line in experiment.lines
        for m in allowed(line, regime)
        if (line.label, m) not in made
    ]
