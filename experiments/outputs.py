"""Write the table or figure of an experiment on prepared data to the results folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from cowclip_merlin.experiments.definitions import Experiment
from cowclip_merlin.experiments.figures import from_results, write_experiment_figure
from cowclip_merlin.experiments.planning.plan import RunResults
from cowclip_merlin.experiments.planning.sweep import best_values
from cowclip_merlin.experiments.results.folder import write_tuned
from cowclip_merlin.experiments.session import Session
from cowclip_merlin.experiments.tables.run_table import (
    further_tables,
    run_table,
    sweep_label_table,
    sweep_table,
)
from cowclip_merlin.experiments.tables.table import Table, table_text, write_table
from cowclip_merlin.experiments.tables.untrained import hyperparameter_table, parameter_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _runs(session: Session, experiment: Experiment) -> Iterator[str]:
    results, sizing = session.results(experiment), session.sizing(experiment)
    table = run_table(experiment, sizing, results, **session.texts(experiment))
    yield from _table(session, table)
    for of_label, found in further_tables(experiment, results):
        yield from _table(session, run_table(of_label, sizing, found, **session.texts(experiment)))
    if experiment.measure == "auc":
        yield from _multiplier_figure(session, experiment, results)


def _multiplier_figure(
    session: Session, experiment: Experiment, results: RunResults
) -> Iterator[str]:
    figure = from_results.multiplier_figure(experiment, results)
    if figure is not None:
        name, title = f"{experiment.name}_auc", f"{experiment.title}: AUC by batch"
        yield _figure(session, experiment, figure, name=name, title=title)


def _sweep(session: Session, experiment: Experiment) -> Iterator[str]:
    results, sizing = session.results(experiment), session.sizing(experiment)
    if session.is_complete(experiment):
        values = best_values(experiment, results)
        group = experiment.lines[0].tuned_group
        write_tuned(session.out, session.tuned_key(experiment), group, values)
    table = sweep_table(experiment, sizing, results, **session.texts(experiment))
    yield from _table(session, table)
    order, texts = [label for label, _ in table.rows], session.texts(experiment)
    for of_label, found in further_tables(experiment, results):
        yield from _table(session, sweep_label_table(of_label, sizing, found, order, **texts))


def _hyperparameters(session: Session, experiment: Experiment) -> Iterator[str]:
    command = session.command(experiment)
    yield from _table(session, hyperparameter_table(experiment, command=command))


def _parameters(session: Session, experiment: Experiment) -> Iterator[str]:
    yield from _table(session, parameter_table(experiment, command=session.command(experiment)))


def _curves(session: Session, experiment: Experiment) -> Iterator[str]:
    results, runs = _finished(session, experiment), session.out / "runs"
    if not results:
        yield _NO_FIGURE
        return
    figure = from_results.epoch_figure(results, session.sizing(experiment), runs)
    yield _figure(session, experiment, figure)


def _time(session: Session, experiment: Experiment) -> Iterator[str]:
    results = _finished(session, experiment)
    if not results:
        yield _NO_FIGURE
        return
    figure = from_results.time_figure(results, session.sizing(experiment))
    yield _figure(session, experiment, figure)


_NO_FIGURE = "no figure: every run diverged"


def _finished(session: Session, experiment: Experiment) -> RunResults:
    """Return the results of runs that did not diverge."""
    found = session.results(experiment)
    return {run: result for run, result in found.items() if result.status == "done"}


def _frequencies(session: Session, experiment: Experiment) -> Iterator[str]:
    yield _figure(session, experiment, from_results.id_frequency_figure(session.data()))


def _gradients(session: Session, experiment: Experiment) -> Iterator[str]:
    run = session.runs(experiment)[0]
    figure, step = from_results.gradient_figure(run, session.data(), device=session.context.device)
    caption = f"{experiment.caption} Step {step:,}, batch {run.settings.batch_size:,}."
    yield _figure(session, experiment, figure, caption=caption)


WRITERS: Mapping[str, Callable[[Session, Experiment], Iterator[str]]] = {
    "runs": _runs,
    "sweep": _sweep,
    "hyperparameters": _hyperparameters,
    "parameters": _parameters,
    "curves": _curves,
    "time": _time,
    "frequencies": _frequencies,
    "gradients": _gradients,
}
"""Kind of experiment -> writes its table or figure, and yields the text to print."""


def _table(session: Session, table: Table) -> Iterator[str]:
    write_table(session.out / "tables", table)
    yield table_text(table)


def _figure(session: Session, experiment: Experiment, figure: Figure, **changed: str) -> str:
    texts = session.texts(experiment)
    return write_experiment_figure(session.out, figure, experiment, texts, **changed)
