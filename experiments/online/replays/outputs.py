"""Write the table and figures of an experiment that replays a log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.definitions import LogExperiment
from cowclip_merlin.experiments.figures import write_figure
from cowclip_merlin.experiments.online.replays.figures import (
    draw_intervals,
    draw_kept,
    draw_over_time,
    finished,
)
from cowclip_merlin.experiments.online.replays.run import LineResults, line_results
from cowclip_merlin.experiments.online.replays.table import replay_table
from cowclip_merlin.experiments.online.session import LogSession
from cowclip_merlin.experiments.tables.files import write_table
from cowclip_merlin.experiments.tables.text import markdown_table, table_text
from cowclip_merlin.system.files import atomic_write

NO_FIGURE = "no figure: every run diverged"


def write_replay_outputs(session: LogSession, experiment: LogExperiment) -> Iterator[str]:
    """Write the table, and the figures that the results allow; yield the text to print."""
    results, out = line_results(session, experiment), session.settings.out
    texts = session.table_texts(experiment, describe_events(results))
    table = replay_table(experiment, results, seeds=session.settings.seeds, **texts)
    path = write_table(out / "tables", table).with_suffix(".md")
    with atomic_write(path) as temporary:
        temporary.write_text(markdown_table(table), encoding="utf-8")
    yield table_text(table)
    if not finished(results):
        yield NO_FIGURE
    elif experiment.kind == "sync":
        yield _figure(session, experiment, draw_intervals(experiment, results), texts)
        yield _over_time(session, experiment, results, texts)
    else:
        yield _figure(session, experiment, draw_kept(experiment, results), texts)


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
    return _figure(session, experiment, figure, texts, name=name, title=title, caption=caption)


def _figure(
    session: LogSession,
    experiment: LogExperiment,
    figure: Any,
    texts: dict[str, Any],
    *,
    name: str | None = None,
    title: str | None = None,
    caption: str | None = None,
) -> str:
    path = write_figure(
        session.settings.out / "figures",
        figure,
        name=name or experiment.name,
        title=title or experiment.title,
        caption=caption or experiment.caption or f"Claim: {experiment.claim}",
        alt=title or experiment.title,
        **texts,
    )
    return f"figure: {path}"
