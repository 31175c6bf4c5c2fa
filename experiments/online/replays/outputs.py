"""Write the table and figures of an experiment that replays a log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.definitions import LogExperiment
from cowclip_merlin.experiments.figures import write_experiment_figure
from cowclip_merlin.experiments.online.log_runs import Measure, gain_measure, show_table
from cowclip_merlin.experiments.online.replays.figures import (
    draw_intervals,
    draw_kept,
    draw_over_time,
    finished,
)
from cowclip_merlin.experiments.online.replays.run import LineResults, line_results
from cowclip_merlin.experiments.online.session import LogSession

NO_FIGURE = "no figure: every run diverged"

_AUC, _LOSS = Measure("auc", "AUC, %", 100, 3), Measure("log_loss", "log loss", 1, 4)
_KEPT = Measure("ids_kept", "ids kept", 1, 0)


def write_replays(session: LogSession, experiment: LogExperiment) -> Iterator[str]:
    """Write the table, and the figures that the results allow; yield the text to print."""
    results = line_results(session, experiment)
    texts = session.texts(experiment) | {"data": session.describe_data(describe_events(results))}
    measures = [_AUC, gain_measure(experiment, 3), _LOSS]
    if experiment.kind == "rules":
        measures.insert(0, _KEPT)
    notes = [f"{line.label}: {line.note}" for line in experiment.lines if line.note]
    yield show_table(session, experiment, results, measures, notes, texts)
    if not finished(results):
        yield NO_FIGURE
        return
    draw = draw_intervals if experiment.kind == "sync" else draw_kept
    yield write_experiment_figure(session.out, draw(experiment, results), experiment, texts)
    if experiment.kind == "sync":
        yield _over_time(session, experiment, results, texts)


def describe_events(results: LineResults) -> str:
    """Describe how many events were trained and scored; empty before the first result."""
    for mine in finished(results).values():
        return f"{mine[0].events:,} events, {mine[0].scored:,} of them scored"
    return ""


def _over_time(
    session: LogSession, experiment: LogExperiment, results: LineResults, texts: Mapping[str, str]
) -> str:
    try:
        figure = draw_over_time(experiment, results, session.out / "runs")
    except InputError as error:  # the numbers of the table do not need the folders of the runs
        return f"no figure over time: {error}"
    title = f"{experiment.title}: AUC over time"
    caption = "AUC of the events of each hour or day, mean over the seeds."
    name = f"{experiment.name}_over_time"
    return write_experiment_figure(
        session.out, figure, experiment, texts, name=name, title=title, caption=caption
    )
