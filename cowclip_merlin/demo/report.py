"""The demo's results: where each event went, a table and a figure; its state in the terminal."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import numpy as np

from cowclip_merlin.online.events.features import LATE, LogFeatures
from cowclip_merlin.online.logs.message_log import MessageLog
from cowclip_merlin.plotting.colors import BLACK, BLUE, PURPLE, VERMILION
from cowclip_merlin.plotting.style import figure_settings, new_figure, save_figure
from cowclip_merlin.types import Floats, Json, JsonObject

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ONLINE, FROZEN, BEST = "online", "frozen", "best"
"""The model that is synced, the one that is not any more, and the true probabilities."""

_MODELS = {
    ONLINE: ("updated", {"color": BLUE, "marker": "o"}),
    FROZEN: ("not updated", {"color": VERMILION, "marker": "s", "linestyle": "--"}),
    BEST: ("best possible", {"color": BLACK, "linestyle": ":"}),
}


@dataclass(frozen=True, kw_only=True)
class Accounts:
    """Where each impression went."""

    impressions: int  # in their log, without repeats
    clicks: int
    examples: int
    due: int  # impressions whose window was over at the end
    lost: int  # those of them without an example
    repeated: int  # examples of a key that has one before; a late click makes one of its own


def take_stock(
    features: LogFeatures,
    impressions: MessageLog,
    actions: MessageLog,
    examples: MessageLog,
    *,
    window: float,
    read: int | None = None,
) -> Accounts:
    """Read all logs, and count by keys.

    An impression must have its example `window` seconds of event time later. Repeated examples are
    counted among the first `read` ones.
    """
    key, time = features.key, features.time
    shown = {row[key]: row[time] for row in _rows(impressions)}
    newest = max(shown.values(), default=0)
    due = {each for each, when in shown.items() if when < newest - window}
    joined = [(row[key], row.get(LATE)) for row in _rows(examples)]
    return Accounts(
        impressions=len(shown),
        clicks=sum(1 for _ in _rows(actions)),
        examples=len(joined),
        due=len(due),
        lost=len(due.difference(each for each, _ in joined)),
        repeated=len(joined[:read]) - len(set(joined[:read])),
    )


def _rows(log: MessageLog) -> Iterator[JsonObject]:
    """Yield all messages of a log as objects."""
    position = log.start()
    while messages := log.read(position, most=4096):
        position = messages[-1].after
        yield from (json.loads(message.value) for message in messages)


def draw(result: Mapping[str, Json], path: Path) -> None:
    """Draw AUC, rows, and the age of the newest event that a server knows, over time."""
    with figure_settings():
        figure = new_figure(9.0, 5.4)
        top, bottom = figure.subfigures(2, 1)
        _draw_auc(top.add_subplot(), result)
        left, right = bottom.subplots(1, 2)
        _draw_age(left, result)
        _draw_rows(right, result)
        save_figure(figure, path)


def _draw_auc(axes: Axes, result: Mapping[str, Json]) -> None:
    auc = result["auc_over_time"]
    for name, (label, look) in _MODELS.items():
        values = [np.nan if x[name] is None else 100 * x[name] for x in auc["parts"]]
        axes.plot(auc["times"], values, label=label, **look)
    axes.axvline(result["frozen_after"], color=VERMILION, linewidth=0.8, label="its last update")
    _mark_kill(axes, result, label="no trainer")
    axes.set(ylabel="AUC, %", title="AUC of impressions, scored before their clicks")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    _mark_time(axes, result)


def _draw_age(axes: Axes, result: Mapping[str, Json]) -> None:
    times, (ages,) = _over_time(result, "event_age")
    axes.plot(times, ages, color=BLUE)
    _mark_kill(axes, result)
    axes.set(ylabel="seconds", title="Age of the newest event that a server knows")
    axes.set_ylim(bottom=0)
    _mark_time(axes, result)


def _draw_rows(axes: Axes, result: Mapping[str, Json]) -> None:
    times, (held, expired) = _over_time(result, "rows", "expired")
    axes.plot(times, (held + expired) / 1000, color=PURPLE, linestyle="--", label="admitted")
    axes.plot(times, held / 1000, color=BLUE, label="held")
    axes.plot(times, expired / 1000, color=VERMILION, linestyle="-.", label="expired")
    _mark_kill(axes, result)
    axes.set(ylabel="thousand ids", title="Rows of the embedding tables")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left", frameon=False)
    _mark_time(axes, result)


def _over_time(result: Mapping[str, Json], *names: str) -> tuple[list[float], list[Floats]]:
    """Times, and numbers of the model that a server had then; NaN for null."""
    models = result["models"]
    return [x["time"] for x in models], [np.array([x[n] for x in models], float) for n in names]


def _mark_time(axes: Axes, result: Mapping[str, Json]) -> None:
    """Give each part of the figure the same time."""
    axes.set(xlabel="seconds", xlim=(0, result["seconds"]))


def _mark_kill(axes: Axes, result: Mapping[str, Json], **label: str) -> None:
    """Shade the time in which there was no trainer."""
    kill = result["kill"]
    if kill is not None:
        first = kill["killed_after"]
        last = first + kill["without_syncs"]
        axes.axvspan(first, last, color=BLACK, alpha=0.08, linewidth=0, **label)


def percentiles(values: Sequence[float], *percents: float) -> JsonObject:
    """Return percentiles by name; None where there are no values.

    >>> percentiles([1.0, 2.0, 3.0], 50)
    {'p50': 2.0}
    """
    return {
        f"p{percent:g}": float(np.percentile(values, percent)) if len(values) else None
        for percent in percents
    }


def table_text(result: Mapping[str, Json]) -> str:
    """Return the table that the demo prints at its end."""
    lines: list[str] = []

    def tell(name: str, words: str) -> None:
        lines.append(f"{name:<17}{words}".rstrip())

    accounts, rate = result["accounts"], result["events_per_second"]
    age, requests = result["event_age"], result["requests"]
    auc, kill, model = result["auc"], result["kill"], result["models"][-1]
    tell("events", f"{accounts['impressions']:,} impressions, {accounts['clicks']:,} clicks")
    tell("", f"{rate['produced']:,.0f} a second produced, {rate['trained']:,.0f} trained")
    if age["p50"] is not None:
        words = f"{age['p50']:.1f} s old p50, {age['p95']:.1f} s p95"
        tell("event to served", f"the newest event that a server knows: {words}")
    if requests["p50"] is not None:
        words = f"{requests['p50']:.1f} ms p50, {requests['p99']:.1f} ms p99"
        unanswered = f"{requests['unanswered']} without an answer"
        tell("a request", f"to score new impressions: {words}; {unanswered}")
    words = f"of {auc['impressions']:,} impressions since the last update of the second model"
    tell("AUC", words)
    names = {ONLINE: "updated all the time", FROZEN: "not updated any more", BEST: "best possible"}
    for name, words in names.items():
        value = auc["whole"][name]
        tell("", f"  {words:<22}{'-' if value is None else f'{100 * value:6.2f} %'}")
    held, expired = model["rows"], model["expired"]
    tell("rows", f"{held + expired:,} admitted, {expired:,} expired, {held:,} held")
    sizes = (f"{name} {size:,.0f}" for name, size in result["memory"].items())
    tell("memory, MB", ", ".join(sizes))
    if kill is None:
        tell("trainer killed", "no syncs came after it")
    else:
        caught = kill["caught_up_after"]
        words = f"up to date {caught:.1f} s after the kill" if caught else "not yet up to date"
        tell("trainer killed", f"{kill['without_syncs']:.1f} s without syncs; {words}")
        tell("", f"{kill['retrained']:,} events trained again since the snapshot")
    tell("lost", f"{accounts['lost']:,} of {accounts['due']:,} impressions without an example")
    read = f"{accounts['trained']:,} events trained of {accounts['examples']:,} examples"
    tell("", f"{read}, {accounts['repeated']:,} of them repeats")
    return "\n".join(lines)


LINE_EVERY = 10.0
"""Seconds between two lines where there is no terminal."""


class StatusBlock:
    """Some lines that always show the newest state: a terminal gets a block, a file a few lines."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._drawn = 0  # lines of the block on the screen
        self._last = -LINE_EVERY

    def show(self, lines: Sequence[str]) -> None:
        """Show the state in place of the one before."""
        if self._out.isatty():
            self.clear()
            self._out.write("".join(f"{line}\n" for line in lines))
            self._drawn = len(lines)
        elif time.monotonic() - self._last >= LINE_EVERY:
            self._last = time.monotonic()
            self._out.write("; ".join(line.strip() for line in lines) + "\n")
        self._out.flush()

    def say(self, line: str) -> None:
        """Write a line that stays."""
        self.clear()
        self._out.write(f"{line}\n")
        self._out.flush()

    def clear(self) -> None:
        """Remove the block from the screen."""
        if self._drawn:
            self._out.write(f"\x1b[{self._drawn}A\x1b[J")
        self._drawn = 0
