"""Make the tables of runs, of their further labels, of sweeps, and those that need no training."""

from __future__ import annotations

import math
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
)
from cowclip_merlin.experiments.on_data.plan import (
    RunResults,
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

UNITS = {"auc": 100.0, "log_loss": 1.0, "minutes": 1 / 60, RMSE: 1.0}
DECIMALS = {"auc": 2, "log_loss": 4, "minutes": 2, RMSE: 4}
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
    lines, measure = experiment.lines, experiment.measure
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
        unit=_unit(experiment),
        columns=_headings(multipliers, sizing),
        rows=tuple(
            (line.label, tuple(cells[line.label, m] for m in multipliers)) for line in lines
        ),
        reference=reference,
        notes=[*notes, *_sampling_note(experiment, results)],
        missing=(*describe_infeasible(experiment, sizing), *not_run),
        decimals=DECIMALS[measure],
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


def _unit(experiment: Experiment) -> str:
    return "RMSE" if experiment.measure == RMSE else MEASURES[experiment.measure]


def _cells(
    measure: str,
    lines: Sequence[ExperimentLine],
    multipliers: Sequence[int | str],
    results: RunResults,
) -> Cells:
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
    name = "seconds" if measure == "minutes" else measure
    return mean_cell([UNITS[measure] * getattr(result, name) for result in results], **known)


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
    errors = [UNITS["auc"] * error for error in known if math.isfinite(error)]
    if experiment.measure != "auc" or not errors:
        return []
    least, most = (f"{error:.{DECIMALS['auc']}f}" for error in (min(errors), max(errors)))
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


_NOT_TEST = "Scored on validation rows; test rows are not used."


def sweep_tables(
    sweep: Experiment, sizing: Sizing, results: RunResults, **texts: str
) -> Iterator[Table]:
    """Make the tables of a sweep: of the first label, which chooses the best point, then others."""
    first = sweep_table(sweep, sizing, results, **texts)
    yield first
    line, order = sweep.lines[0], [label for label, _ in first.rows]
    for of_label, found in further_tables(sweep, results):
        lines = [replace(line, label=label) for label in order]
        cells = _cells(of_label.measure, lines, line.multipliers, found)
        yield experiment_table(
            of_label,
            unit=f"validation {_unit(of_label)}",
            columns=tuple(_heading(m, sizing) for m in line.multipliers),
            rows=tuple((x, tuple(cells[x, m] for m in line.multipliers)) for x in order),
            notes=(_NOT_TEST, "The first label decides which point is the best, and the order."),
            decimals=DECIMALS[of_label.measure],
            **texts,
        )


def sweep_table(sweep: Experiment, sizing: Sizing, results: RunResults, **texts: str) -> Table:
    """Make the table: one row per point, one column per batch, and one for their mean.

    The best point comes first; those of the grid without a score are last.
    """
    scores, multipliers = validation_scores(results), sweep.lines[0].multipliers
    several = len(multipliers) > 1
    labels = sorted(scores, key=lambda label: -mean_score(scores[label]))
    labels += [line.label for line in expand_sweep(sweep).lines if line.label not in scores]
    return experiment_table(
        sweep,
        unit="validation AUC %",
        columns=(*(_heading(m, sizing) for m in multipliers), *["mean"] * several),
        rows=tuple((label, _sweep_cells(scores.get(label, {}), multipliers)) for label in labels),
        notes=(
            _NOT_TEST,
            "Neighbors of the two best points were tried until no neighbor was better.",
        ),
        **texts,
    )


def _sweep_cells(
    scores: Mapping[int | str, list[float]], multipliers: Sequence[int | str]
) -> tuple[Cell, ...]:
    """Return the cells of a point; a score of 0 ranks a diverged run last, but is no AUC."""

    def cell(aucs: Sequence[float]) -> Cell:
        if 0 in aucs:
            return Cell(text="diverged", runs=len(aucs))
        return mean_cell([100 * auc for auc in aucs]) if aucs else Cell()

    cells = [cell(scores.get(m, ())) for m in multipliers]
    if len(multipliers) == 1:
        return tuple(cells)
    if len(scores) < len(multipliers):
        return (*cells, Cell())
    seeds = min(map(len, scores.values()))
    if any(each.mean is None for each in cells):
        return (*cells, Cell(text="diverged", runs=seeds))
    return (*cells, Cell(mean=100 * mean_score(scores), runs=seeds))


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
