"""Make the tables of runs, of their further labels, of sweeps, and those that need no training."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from cowclip_merlin import choices
from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.definitions import (
    MEASURES,
    NAMED_MULTIPLIERS,
    RMSE,
    Experiment,
    ExperimentLine,
    Measure,
)
from cowclip_merlin.experiments.on_data.plan import (
    RunResults,
    by_cell,
    describe_infeasible,
    expand_sweep,
    feasible_multipliers,
    mean_score,
    validation_scores,
)
from cowclip_merlin.experiments.results import Result, scores_of_targets
from cowclip_merlin.experiments.sizing import Sizing
from cowclip_merlin.experiments.tables import Cell, Table, experiment_table, mean_cell, verdict
from cowclip_merlin.scaling import ADAM_RULES, Hyperparameters, K, scale

_MEASURES = {**MEASURES, RMSE: Measure(RMSE, "RMSE", 1, 4)}
Cells = Mapping[tuple[str, int | str], Cell]
"""Label of the line and multiplier -> cell."""


def run_tables(
    experiment: Experiment, sizing: Sizing, results: RunResults, **texts: str
) -> Iterator[Table]:
    """Make the tables of an experiment of kind "runs": of the first label, then of each other one.

    `texts` are `data`, `command` and `fingerprint` of `Table`.
    """
    yield run_table(experiment, sizing, results, **texts)
    for of_label, found in further_tables(experiment, results):
        yield run_table(of_label, sizing, found, **texts)


def run_table(experiment: Experiment, sizing: Sizing, results: RunResults, **texts: str) -> Table:
    """Make the table of one label."""
    lines, measure = experiment.lines, _MEASURES[experiment.measure]
    every = {m for line in lines for m in line.multipliers}
    multipliers = sorted(every, key=lambda m: (sizing.factor(m), str(m)))
    cells = _judged(experiment, _cells(measure, lines, multipliers, results))
    reference = ""
    if experiment.reference is not None:
        label, multiplier = experiment.reference
        reference = f"{label} at batch {sizing.batch(multiplier):,}"
    done = {(run.label, run.multiplier) for run in results}
    not_run = [
        f"{line.label} at x{sizing.factor(m)}: not run yet"
        for line in lines
        for m in feasible_multipliers(line, sizing)
        if (line.label, m) not in done
    ]
    notes = [f"{line.label}, x{m}: {text}" for line in lines for m, text in line.notes.items()]
    return experiment_table(
        experiment,
        unit=measure.heading,
        columns=_headings(multipliers, sizing),
        rows=tuple(
            (line.label, tuple(cells[line.label, m] for m in multipliers)) for line in lines
        ),
        reference=reference,
        notes=[*notes, *_sampling_note(experiment, results)],
        missing=(*describe_infeasible(experiment, sizing), *not_run),
        decimals=measure.decimals,
        **texts,
    )


def _headings(multipliers: Sequence[int | str], sizing: Sizing) -> tuple[str, ...]:
    """Return the columns' headings; add the name if a named multiplier repeats another one."""
    plain = [_heading(m, sizing) for m in multipliers]
    return tuple(
        f"{text} ({m})" if m in NAMED_MULTIPLIERS and plain.count(text) > 1 else text
        for m, text in zip(multipliers, plain)
    )


def _heading(multiplier: int | str, sizing: Sizing) -> str:
    return f"x{sizing.factor(multiplier)} = {sizing.batch(multiplier):,}"


def _cells(
    measure: Measure,
    lines: Sequence[ExperimentLine],
    multipliers: Sequence[int | str],
    results: RunResults,
) -> Cells:
    found = by_cell(results)
    return {
        (line.label, m): _cell(measure, line, m, found.get((line.label, m), []))
        for line in lines
        for m in multipliers
    }


def _cell(
    measure: Measure, line: ExperimentLine, multiplier: int | str, results: Sequence[Result]
) -> Cell:
    published = line.published.get(multiplier)
    known = {"published": published, "note": line.notes.get(multiplier, "")}
    if multiplier not in line.multipliers:
        return Cell(text="", **known)
    if not results:
        return Cell(**known)
    if any(result.status == "diverged" for result in results):
        return Cell(text="diverged", runs=len(results), **known)
    return mean_cell([measure.of(result) for result in results], **known)


def _judged(experiment: Experiment, cells: Cells) -> Cells:
    """Add verdicts to the cells, but not to lines with other ids than the reference."""
    if experiment.reference is None:
        return cells
    reference, better = cells[tuple(experiment.reference)], experiment.measure == "auc"
    ids = {line.label: line.keep_top for line in experiment.lines}
    return {
        (label, multiplier): cell
        if cell is reference or ids[label] != ids[experiment.reference[0]]
        else replace(cell, verdict=verdict(cell, reference, higher_is_better=better))
        for (label, multiplier), cell in cells.items()
    }


def _sampling_note(experiment: Experiment, results: RunResults) -> list[str]:
    """Say how much other test rows would change an AUC; the spread over seeds lacks this."""
    known = [r.auc_error for r in results.values() if r.auc_error is not None]
    errors = [100 * error for error in known if math.isfinite(error)]
    if experiment.measure != "auc" or not errors:
        return []
    least, most = (f"{error:.2f}" for error in (min(errors), max(errors)))
    size = least if least == most else f"{least} to {most}"
    return [
        f"Standard error of one AUC from the sampling of the scored rows (DeLong): {size} points. "
        "All seeds score the same rows, so ± does not contain it."
    ]


@dataclass(frozen=True, kw_only=True)
class LabelResult(Result):
    """The result of a run for a label that is not the first one; a number has an RMSE."""

    rmse: float | None = None


def further_tables(
    experiment: Experiment, results: RunResults
) -> list[tuple[Experiment, RunResults]]:
    """Return an experiment and its results for each label but the first, to make tables of.

    The paper has no numbers of these labels.

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
    found = []
    for number, label in enumerate(next(iter(every), ())[1:], 2):
        of_label = {run: _with_scores(result, label) for run, result in results.items()}
        numbers = any(result.rmse is not None for result in of_label.values())
        changed = replace(
            experiment,
            name=f"{experiment.name}_label{number}",
            title=f"{experiment.title}: label {label}",
            claim="",
            measure=RMSE if numbers else experiment.measure,
            lines=tuple(replace(line, published={}, notes={}) for line in experiment.lines),
        )
        found.append((changed, of_label))
    return found


def _with_scores(result: Result, label: str) -> LabelResult:
    """Return a result with the scores of another label; a diverged run has none."""
    scores = scores_of_targets(result).get(label, {})
    names = ("auc", "auc_error", "log_loss", "rmse")
    return LabelResult(**asdict(result) | {name: scores[name] for name in names if name in scores})


def sweep_tables(
    sweep: Experiment, sizing: Sizing, results: RunResults, **texts: str
) -> Iterator[Table]:
    """Make the tables of a sweep: of the first label, which chooses the best point, then others.

    A table has one row per point and one column per batch, the first one also a column of means.
    The best point comes first; those of the grid without a score are last.
    """
    scores = validation_scores(results)
    order = sorted(scores, key=lambda label: -mean_score(scores[label]))
    order += [line.label for line in expand_sweep(sweep).lines if line.label not in scores]
    of_auc = replace(sweep, measure="auc")
    note = "Neighbors of the two best points were tried until no neighbor was better."
    yield _sweep_table(of_auc, sizing, results, order, note, means=True, **texts)
    note = "The first label decides which point is the best, and the order."
    for of_label, found in further_tables(sweep, results):
        yield _sweep_table(of_label, sizing, found, order, note, **texts)


def _sweep_table(
    sweep: Experiment,
    sizing: Sizing,
    results: RunResults,
    order: Sequence[str],
    note: str,
    *,
    means: bool = False,
    **texts: str,
) -> Table:
    measure, multipliers = _MEASURES[sweep.measure], sweep.lines[0].multipliers
    means = means and len(multipliers) > 1
    lines = [replace(sweep.lines[0], label=label) for label in order]
    cells = _cells(measure, lines, multipliers, results)
    rows = [(label, [cells[label, m] for m in multipliers]) for label in order]
    return experiment_table(
        sweep,
        unit=f"validation {measure.heading}",
        columns=(*(_heading(m, sizing) for m in multipliers), *["mean"] * means),
        rows=tuple((label, (*mine, *[_mean_of(mine)] * means)) for label, mine in rows),
        notes=("Scored on validation rows; test rows are not used.", note),
        decimals=measure.decimals,
        **texts,
    )


def _mean_of(cells: Sequence[Cell]) -> Cell:
    """Return the mean over the batches; a point that was not run at one of them has none."""
    runs = min(cell.runs for cell in cells)
    if not runs:
        return Cell()
    if any(cell.mean is None for cell in cells):
        return Cell(text="diverged", runs=runs)
    return Cell(mean=statistics.fmean(cell.mean for cell in cells), runs=runs)


def hyperparameter_table(experiment: Experiment, *, command: str) -> Table:
    """Apply the scaling rules at the paper's sizes: one row per line, one column per batch.

    A cell is "embedding rate / dense rate / L2", under CowClip with "/ r / zeta", and under `sde`
    with "/ beta_1 / beta_2".
    """
    lines = experiment.lines
    multipliers = sorted({m for line in lines for m in line.multipliers})
    misprints = [
        f"{line.label} at {m}K: {text}" for line in lines for m, text in line.notes.items()
    ]

    def cell(line: ExperimentLine, multiplier: int) -> Cell:
        if multiplier not in line.multipliers:
            return Cell(text="")
        values = scale(experiment.preset, to=multiplier * K, rule=line.rule)
        return Cell(text=_rates(values, line.rule))

    return experiment_table(
        experiment,
        unit="embedding rate / dense rate / L2 (/ r / zeta)",
        columns=tuple(f"{m}K" for m in multipliers),
        rows=tuple((line.label, tuple(cell(line, m) for m in multipliers)) for line in lines),
        data="The paper's sizes",
        notes=misprints,
        command=command,
    )


def _rates(values: Hyperparameters, rule: str) -> str:
    more = {"cowclip": ("r", "zeta")} | dict.fromkeys(ADAM_RULES, ("beta_1", "beta_2"))
    names = ("embedding_lr", "dense_lr", "l2", *more.get(rule, ()))
    return " / ".join(short_number(getattr(values, name)) for name in names)


def short_number(number: float) -> str:
    """Format a rate with three significant digits.

    >>> short_number(2.262742e-3), short_number(1.0)
    ('2.26e-3', '1')
    """
    if number == 0 or 0.1 <= number < 1000:
        return f"{number:.3g}"
    power = math.floor(math.log10(number))
    return f"{number / 10**power:.3g}e{power}"


def parameter_table(experiment: Experiment, *, command: str) -> Table:
    """Count the dense parameters of the four models on Criteo's 26 + 13 columns."""

    def cells(line: ExperimentLine) -> tuple[Cell, ...]:
        counts = [dense_parameters(line.model, way) / 1e6 for way in choices.CONTINUOUS]
        return tuple(Cell(mean=n, runs=1, published=line.published.get(1)) for n in counts)

    return experiment_table(
        experiment,
        unit="million parameters",
        columns=tuple(f'continuous="{way}"' for way in choices.CONTINUOUS),
        rows=tuple((line.label, cells(line)) for line in experiment.lines),
        data="Criteo's columns; tables not counted",
        command=command,
        decimals=3,
    )


def dense_parameters(model: str, continuous: str) -> int:
    """Count the weights of a model outside its embedding tables."""
    from cowclip_merlin.bench.random_data import NUM_FIELDS, random_model

    fields: dict[str, int] = {f"C{i + 1}": 4 for i in range(NUM_FIELDS)}
    built = random_model(model, fields, continuous=continuous)
    return sum(
        math.prod(variable.shape)
        for variable in built.trainable_variables
        if "embeddings" not in variable.name
    )
