"""Make tables of training runs, of their further labels, and of sweeps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.definitions import (
    MEASURES,
    NAMED_MULTIPLIERS,
    RMSE,
    Experiment,
    ExperimentLine,
)
from cowclip_merlin.experiments.planning.plan import (
    RunResults,
    describe_infeasible,
    feasible_multipliers,
)
from cowclip_merlin.experiments.planning.sizing import Sizing
from cowclip_merlin.experiments.planning.sweep import (
    Scores,
    expand_sweep,
    mean_score,
    validation_scores,
)
from cowclip_merlin.experiments.results.result import Result, scores_of_targets
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


_SCORES = ("auc", "auc_error", "log_loss", "rmse")


def further_tables(
    experiment: Experiment, results: RunResults
) -> Sequence[tuple[Experiment, RunResults]]:
    """Return an experiment and its results for each label but the first, to make tables of.

    The paper has no numbers of these labels.

    Args:
        experiment: of kind "runs" or "sweep".
        results: those of its runs.

    Raises:
        InputError: if the runs have scores of other labels.
    """
    if experiment.measure == "minutes":
        return []
    every = {tuple(scores_of_targets(each)) for each in results.values() if each.targets}
    if len(every) > 1:
        raise InputError(
            f"{experiment.cli_name}: its runs have scores of different labels; use another `out`"
        )
    labels = next(iter(every), ())
    return [_of_label(experiment, results, *each) for each in enumerate(labels[1:], 2)]


def _of_label(
    experiment: Experiment, results: RunResults, number: int, label: str
) -> tuple[Experiment, RunResults]:
    found = {run: _with_scores(result, label) for run, result in results.items()}
    numbers = any(result.rmse is not None for result in found.values())
    changed = {
        "name": f"{experiment.name}_label{number}",
        "title": f"{experiment.title}: label {label}",
        "claim": "",
        "measure": RMSE if numbers else experiment.measure,
        "lines": tuple(replace(line, published={}, notes={}) for line in experiment.lines),
    }
    return replace(experiment, **changed), found


@dataclass(frozen=True, kw_only=True)
class LabelResult(Result):
    """The result of a run for a label that is not the first one.

    Attributes:
        rmse: root mean squared error of a label that is a number; None of one of 0 and 1.
    """

    rmse: float | None = None


def _with_scores(result: Result, label: str) -> LabelResult:
    """Return a result with the scores of another label; a diverged run has none."""
    scores = scores_of_targets(result).get(label, {})
    kept = {name: scores[name] for name in _SCORES if name in scores}
    return LabelResult(**asdict(result) | kept)


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
