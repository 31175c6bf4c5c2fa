"""The tables and figures of an experiment on prepared data, from results of runs or from data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

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
from cowclip_merlin.experiments.figures import (
    Curve,
    draw_epochs,
    draw_ids,
    draw_multipliers,
    draw_times,
)
from cowclip_merlin.experiments.on_data.plan import (
    CellResults,
    PlannedRun,
    RunResults,
    by_cell,
    describe_infeasible,
    feasible_multipliers,
)
from cowclip_merlin.experiments.results import Result, scores_of_targets
from cowclip_merlin.experiments.sizing import Sizing
from cowclip_merlin.experiments.tables import Cell, Table, experiment_table, mean_cell, verdict
from cowclip_merlin.loading import steps_per_epoch
from cowclip_merlin.scaling import ADAM_RULES, Hyperparameters, K, scale
from cowclip_merlin.training.run_logs import read_metrics
from cowclip_merlin.workflows import PreparedData
from cowclip_merlin.workflows.prepared.counts import frequencies

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TABLE_MEASURES = {**MEASURES, RMSE: Measure(RMSE, "RMSE", 1, 4)}
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
    lines, measure = experiment.lines, TABLE_MEASURES[experiment.measure]
    every = {m for line in lines for m in line.multipliers}
    multipliers = sorted(every, key=lambda m: (sizing.factor(m), str(m)))
    cells = _judged(experiment, cells_of(measure, lines, multipliers, results))
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
    plain = [heading(m, sizing) for m in multipliers]
    return tuple(
        f"{text} ({m})" if m in NAMED_MULTIPLIERS and plain.count(text) > 1 else text
        for m, text in zip(multipliers, plain)
    )


def heading(multiplier: int | str, sizing: Sizing) -> str:
    """Return the heading of a column."""
    return f"x{sizing.factor(multiplier)} = {sizing.batch(multiplier):,}"


def cells_of(
    measure: Measure,
    lines: Sequence[ExperimentLine],
    multipliers: Sequence[int | str],
    results: RunResults,
) -> Cells:
    """Return the cells of a table, without verdicts."""
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


GRADIENT_STEP = 1000
_PANELS = {
    "test AUC, %": ("test_auc", 100.0),
    "test log loss": ("test_log_loss", 1.0),
    "training loss": ("train_loss", 1.0),
}
"""Label of the vertical axis -> column of `metrics.csv` and its factor."""


def _finished(results: RunResults) -> CellResults:
    return by_cell({run: result for run, result in results.items() if result.status == "done"})


def epoch_figure(results: RunResults, sizing: Sizing, runs_folder: Path) -> Figure | None:
    """Draw Figures 5 and 6, test AUC and losses by epoch; None if every run diverged.

    There is one curve per line and batch.

    Raises:
        InputError: if a run folder lacks metrics.
    """
    groups = _finished(results)

    def curve(label: str, group: Sequence[Result], column: str, factor: float) -> Curve:
        rows = [_metrics(runs_folder, result) for result in group]
        runs = [[factor * float(row[column]) for row in run] for run in rows]
        return Curve(label=label, x=tuple(range(1, len(runs[0]) + 1)), runs=runs)

    measures = {
        title: [
            curve(f"{label}, batch {sizing.batch(m):,}", group, *column)
            for (label, m), group in groups.items()
        ]
        for title, column in _PANELS.items()
    }
    return draw_epochs(measures) if groups else None


def _metrics(runs_folder: Path, result: Result) -> list[dict[str, str]]:
    path = runs_folder / result.run_id / "metrics.csv"
    found = read_metrics(path, epochs=result.epochs)
    if len(found) < result.epochs:
        raise InputError(
            f"{path}: has {len(found)} of {result.epochs} epochs; a figure by epoch needs the run "
            "folders; restore them, or use another `out`"
        )
    return found


def _of_line(label: str, results: RunResults) -> dict[int | str, Sequence[Result]]:
    return {m: group for (name, m), group in _finished(results).items() if name == label}


def _by_seed(
    groups: Iterable[Sequence[Result]], value: Callable[[Result], float]
) -> list[list[float]]:
    """Return the values of each seed by multiplier; NaN where it has no finished run."""
    found = [{result.seed: value(result) for result in group} for group in groups]
    seeds = sorted(set().union(*found))
    return [[of_seed.get(seed, math.nan) for of_seed in found] for seed in seeds]


def time_figure(results: RunResults, sizing: Sizing) -> Figure | None:
    """Draw Figure 1, times of an epoch and of a step by batch; None if every run diverged."""
    curves = []
    for label in dict.fromkeys(label for label, _ in _finished(results)):
        groups = {sizing.batch(m): group for m, group in _of_line(label, results).items()}
        seconds = _by_seed(groups.values(), lambda result: result.seconds / result.epochs)
        curves.append(Curve(label=label, x=tuple(groups), runs=seconds))
    return draw_times(curves, rows=sizing.rows) if curves else None


def multiplier_figure(experiment: Experiment, results: RunResults) -> Figure | None:
    """Draw AUC against the multiple of the base batch; None if no line has several multiples."""
    curves = []
    for line in experiment.lines:
        groups = _of_line(line.label, results)
        if not groups or set(groups) & set(NAMED_MULTIPLIERS):
            continue
        auc = _by_seed(groups.values(), lambda result: 100 * result.auc)
        curves.append(Curve(label=line.label, x=tuple(groups), runs=auc))
    if not any(len(curve.x) > 1 for curve in curves):
        return None
    published = [
        Curve(label=line.label, x=tuple(known), runs=[list(known.values())])
        for line in experiment.lines
        if (known := {m: v for m, v in line.published.items() if m not in NAMED_MULTIPLIERS})
    ]
    return draw_multipliers(curves, published)


def id_frequency_figure(data: PreparedData) -> Figure:
    """Draw Figure 3: how often each id of a field occurs in the training rows.

    Raises:
        InputError: if no field has an id of its own.
    """
    counts = {field: frequencies(data, field) for field in data.tables}
    if not any(map(len, counts.values())):
        raise InputError(
            f"{data.path}: every id is missing or out of vocabulary; prepare with a smaller "
            "`freq_threshold`"
        )
    return draw_ids(counts)


def gradient_figure(run: PlannedRun, data: PreparedData, *, device: str) -> tuple[Figure, int]:
    """Draw Figure 4, gradient norms of the rows in one batch; also return the batch's step."""
    from cowclip_merlin.diagnostics import figure_4, probe_run

    steps = steps_per_epoch(data.rows["train"], run.settings.batch_size)
    step = min(GRADIENT_STEP, steps * run.settings.epochs - 1)
    norms = probe_run(data.path, run.settings, step=step, device=device)
    return figure_4(norms.cnt, norms.g_norm), step
