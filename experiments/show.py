"""What an experiment ends in: a table or a figure, written to the results folder and printed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cowclip_merlin.experiments import drawn, sweep
from cowclip_merlin.experiments.definitions import Experiment
from cowclip_merlin.experiments.figures import write_figure
from cowclip_merlin.experiments.listed import hyperparameter_table, parameter_table
from cowclip_merlin.experiments.table import Table, as_text
from cowclip_merlin.experiments.table_json import write_table
from cowclip_merlin.experiments.tables import table_of_runs

if TYPE_CHECKING:
    from cowclip_merlin.experiments.session import Session


def show(session: Session, experiment: Experiment) -> Iterator[str]:
    """Write what an experiment shows; yields the lines to print."""
    yield from _SHOWN[experiment.kind](session, experiment)


def _runs(session: Session, experiment: Experiment) -> Iterator[str]:
    results, regime = session.results(experiment), session.regime(experiment)
    table = table_of_runs(experiment, regime, results, **_said(session, experiment))
    yield from _table(session, table)
    figure = drawn.multipliers(experiment, results) if experiment.measure == "auc" else None
    if figure is not None:
        name, title = f"{experiment.name}_auc", f"{experiment.title}: AUC by batch"
        yield _figure(session, experiment, figure, name=name, title=title)


def _sweep(session: Session, experiment: Experiment) -> Iterator[str]:
    results, regime = session.results(experiment), session.regime(experiment)
    if session.complete(experiment):
        values = sweep.best(experiment, results)
        group = experiment.lines[0].tuned_group
        sweep.write_tuned(session.place.out, session.tuned_key(experiment), group, values)
    table = sweep.sweep_table(experiment, regime, results, **_said(session, experiment))
    yield from _table(session, table)


def _hyperparameters(session: Session, experiment: Experiment) -> Iterator[str]:
    command = session.command(experiment)
    yield from _table(session, hyperparameter_table(experiment, command=command))


def _parameters(session: Session, experiment: Experiment) -> Iterator[str]:
    yield from _table(session, parameter_table(experiment, command=session.command(experiment)))


def _curves(session: Session, experiment: Experiment) -> Iterator[str]:
    results, runs = _ended(session, experiment), session.place.out / "runs"
    if not results:
        yield _NO_FIGURE
        return
    yield _figure(session, experiment, drawn.curves(results, session.regime(experiment), runs))


def _time(session: Session, experiment: Experiment) -> Iterator[str]:
    results = _ended(session, experiment)
    if not results:
        yield _NO_FIGURE
        return
    yield _figure(session, experiment, drawn.times(results, session.regime(experiment)))


_NO_FIGURE = "no figure: every run diverged"


def _ended(session: Session, experiment: Experiment) -> drawn.Results:
    """The results that can be drawn."""
    found = session.results(experiment)
    return {run: result for run, result in found.items() if result.status == "done"}


def _frequencies(session: Session, experiment: Experiment) -> Iterator[str]:
    yield _figure(session, experiment, drawn.ids_by_frequency(session.data()))


def _gradients(session: Session, experiment: Experiment) -> Iterator[str]:
    run = session.runs(experiment)[0]
    figure, step = drawn.gradients(run, session.data(), device=session.place.device)
    caption = f"{experiment.caption} Step {step:,}, batch {run.settings.batch_size:,}."
    yield _figure(session, experiment, figure, caption=caption)


_SHOWN: Mapping[str, Callable[[Any, Experiment], Iterator[str]]] = {
    "runs": _runs,
    "sweep": _sweep,
    "hyperparameters": _hyperparameters,
    "parameters": _parameters,
    "curves": _curves,
    "time": _time,
    "frequencies": _frequencies,
    "gradients": _gradients,
}


def _said(session: Session, experiment: Experiment) -> dict[str, str]:
    return {"data": session.describe(), "command": session.command(experiment)}


def _table(session: Session, table: Table) -> Iterator[str]:
    write_table(session.place.out / "tables", table)
    yield as_text(table)


def _figure(
    session: Session,
    experiment: Experiment,
    figure: Any,
    *,
    name: str | None = None,
    title: str | None = None,
    caption: str | None = None,
) -> str:
    path = write_figure(
        session.place.out / "figures",
        figure,
        name=name or experiment.name,
        title=title or experiment.title,
        caption=caption or experiment.caption or f"Claim: {experiment.claim}",
        alt=title or experiment.title,
        **_said(session, experiment),
    )
    return f"figure: {path}"
