"""Write the table and figures of an experiment that replays a log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.definitions import LogExperiment
from cowclip_merlin.experiments.figures import write_experiment_figure
from cowclip_merlin.experiments.online.replays.figures import (
    draw_intervals,
    draw_kept,
    draw_over_time,
    finished,
)
from cowclip_merlin.experiments.online.replays.run import LineResults, line_results
from cowclip_merlin.experiments.online.replays.table import replay_table
from cowclip_merlin.experiments.online.session import LogSession
from cowclip_merlin.experiments.tables.files import write_markdown, write_table
from cowclip_merlin.experiments.tables.text import table_text

NO_FIGURE = "no figure: every run diverged"


def write_replay_outputs(session: LogSession, experiment: LogExperiment) -> Iterator[str]:
    """Write the table, and the figures that the results allow; yield the text to print."""
    results, out = line_results(session, experiment), session.settings.out
    texts = session.table_texts(experiment, describe_events(results))
    table = replay_table(experiment, results, seeds=session.settings.seeds, **texts)
    write_table(out / "tables", table)
    write_markdown(out / "tables", table)
    yield table_text(table)
    if not finished(results):
        yield NO_FIGURE
    elif experiment.kind == "sync":
        yield write_experiment_figure(out, draw_intervals(experiment, results), experiment, texts)
        yield _over_time(session, experiment, results, texts)
    else:
        yield write_experiment_figure(out, draw_kept(experiment, results), experiment, texts)


def describe_events(results: LineResults) -> str:
    """Describe how many events were trained and scored; empty before the first result."""
    for mine in finished(results).values():
        return f"{mine[0].events:,} events, {mine[0].scored:,} of them scored"
    return ""


def _over_time(
    session: LogSession, experiment: LogExperiment, results: LineResults, texts: dict[str, Any]
) -> str:
    try:
        figure = draw_over_time(experiment, results, session.settings.out / "runs")
    except InputError as error:  # the numbers of the table do not need the folders of the runs
        return f"no figure over time: {error}"
    title = f"{experiment.title}: AUC over time"
    caption = "AUC of the events of each hour or day, mean over the seeds."
    name = f"{experiment.name}_over_time"
    return write_experiment_figure(
        session.settings.out, figure, experiment, texts, name=name, title=title, caption=caption
    )
