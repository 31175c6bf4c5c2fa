"""The demo's results: numbers for JSON, a table and a figure; its state in the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import numpy as np

from cowclip_merlin.demo.measuring.probes import STAGES, Latency
from cowclip_merlin.demo.measuring.scoring import BEST, FROZEN, ONLINE
from cowclip_merlin.plotting.colors import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY_BLUE, VERMILION
from cowclip_merlin.plotting.style import figure_settings, new_figure, save_figure
from cowclip_merlin.types import Json, JsonObject

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_MODELS = {
    ONLINE: ("updated", {"color": BLUE, "marker": "o"}),
    FROZEN: ("not updated", {"color": VERMILION, "marker": "s", "linestyle": "--"}),
    BEST: ("best possible", {"color": BLACK, "linestyle": ":"}),
}
_STAGES = dict(zip(STAGES, (SKY_BLUE, BLUE, ORANGE, GREEN), strict=True))


def draw(result: Mapping[str, Json], path: Path) -> None:
    """Draw AUC and rows over time, and the latency of each probe by stage.

    Args:
        result: the demo's numbers, as in demo.json.
        path: SVG file to write.
    """
    with figure_settings():
        figure = new_figure(9.0, 5.4)
        top, bottom = figure.subfigures(2, 1)
        _draw_auc(top.add_subplot(), result)
        left, right = bottom.subplots(1, 2)
        _draw_latency(left, result)
        _draw_rows(right, result)
        save_figure(figure, path)


def _draw_auc(axes: Axes, result: Mapping[str, Json]) -> None:
    auc = result["auc_over_time"]
    for name, (label, look) in _MODELS.items():
        values = [np.nan if x is None else 100 * x for x in auc["parts"][name]]
        axes.plot(auc["times"], values, label=label, **look)
    axes.axvline(result["frozen_after"], color=VERMILION, linewidth=0.8, label="its last update")
    _mark_kill(axes, result, label="no trainer")
    axes.set(ylabel="AUC, %", title="AUC of impressions, scored before their clicks")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    _mark_time(axes, result)


def _draw_latency(axes: Axes, result: Mapping[str, Json]) -> None:
    probes = result["probes"]
    places, before = [each["began"] for each in probes], np.zeros(len(probes))
    width = result["seconds"] / 120
    for name, color in _STAGES.items():
        seconds = np.array([each[name] for each in probes])
        axes.bar(places, seconds, width, bottom=before, color=color, label=name)
        before = before + seconds
    _mark_kill(axes, result)
    axes.set(ylabel="seconds", title="From a click to predictions that know it")
    if probes:
        # The probe that waits for a new trainer is many times as long as the others.
        axes.set_ylim(0, 2 * np.median(before))
    axes.legend(ncols=4, loc="upper left", frameon=False, columnspacing=1.0, handlelength=1.0)
    _mark_time(axes, result)


def _draw_rows(axes: Axes, result: Mapping[str, Json]) -> None:
    rows = result["rows_over_time"]
    held, expired = (np.array(rows[name]) / 1000 for name in ("held", "expired"))
    axes.plot(rows["times"], held + expired, color=PURPLE, linestyle="--", label="admitted")
    axes.plot(rows["times"], held, color=BLUE, label="held")
    axes.plot(rows["times"], expired, color=VERMILION, linestyle="-.", label="expired")
    _mark_kill(axes, result)
    axes.set(ylabel="thousand ids", title="Rows of the embedding tables")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left", frameon=False)
    _mark_time(axes, result)


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


def latency_summary(latencies: Sequence[Latency], given_up: int) -> JsonObject:
    """Return the percentiles of each stage and of the whole way."""
    stages = {
        name: percentiles([getattr(each, name) for each in latencies], 50, 95)
        for name in (*STAGES, "total")
    }
    return {"probes": len(latencies), "given_up": given_up, "seconds": stages}


def table_text(result: Mapping[str, Json]) -> str:
    """Return the table that the demo prints at its end."""
    return "\n".join(
        [
            *_event_lines(result),
            *_latency_lines(result["latency"], result["requests"]),
            *_auc_lines(result["auc"]),
            *_row_lines(result),
            *_kill_lines(result["kill"], result["accounts"]),
        ]
    )


def _event_lines(result: Mapping[str, Json]) -> list[str]:
    accounts, rate = result["accounts"], result["events_per_second"]
    return [
        _line("events", f"{accounts['impressions']:,} impressions, {accounts['clicks']:,} clicks"),
        _line("", f"{rate['produced']:,.0f} a second produced, {rate['trained']:,.0f} trained"),
    ]


def _latency_lines(latency: Mapping[str, Json], requests: Mapping[str, Json]) -> list[str]:
    lines = [_line("event to served", f"{latency['probes']} probes, seconds    p50     p95")]
    for name, each in latency["seconds"].items():
        if each["p50"] is not None:
            lines.append(_line("", f"  {name:<22}{each['p50']:6.2f}  {each['p95']:6.2f}"))
    if latency["given_up"]:
        lines.append(_line("", f"  {latency['given_up']} probes were not served in time"))
    if requests["p50"] is not None:
        words = f"{1e3 * requests['p50']:.1f} ms p50, {1e3 * requests['p99']:.1f} ms p99"
        lines.append(_line("a request", f"{words}; {requests['unanswered']} without an answer"))
    return lines


def _auc_lines(auc: Mapping[str, Json]) -> list[str]:
    names = {ONLINE: "updated all the time", FROZEN: "not updated any more", BEST: "best possible"}
    words = f"of {auc['impressions']:,} impressions since the last update of the second model"
    lines = [_line("AUC", words)]
    for name, words in names.items():
        value = auc["whole"][name]
        shown = "-" if value is None else f"{100 * value:6.2f} %"
        lines.append(_line("", f"  {words:<22}{shown}"))
    return lines


def _row_lines(result: Mapping[str, Json]) -> list[str]:
    rows, memory = result["rows"], result["memory"]
    words = ", ".join(f"{name} {size:,.0f}" for name, size in memory.items())
    counts = f"{rows['admitted']:,} admitted, {rows['expired']:,} expired, {rows['held']:,} held"
    return [_line("rows", counts), _line("memory, MB", words)]


def _kill_lines(kill: Mapping[str, Json] | None, accounts: Mapping[str, Json]) -> list[str]:
    if kill is None:
        lines = [_line("trainer killed", "no syncs came after it")]
    else:
        caught = kill["caught_up_after"]
        words = f"up to date {caught:.1f} s after the kill" if caught else "not yet up to date"
        lines = [
            _line("trainer killed", f"{kill['without_syncs']:.1f} s without syncs; {words}"),
            _line("", f"{kill['retrained']:,} events trained again since the snapshot"),
        ]
    lost = f"{accounts['lost']:,} of {accounts['due']:,} impressions without an example"
    lines.append(_line("lost", lost))
    read = f"{accounts['trained']:,} events trained of {accounts['read']:,} examples"
    return [*lines, _line("", f"{read}, {accounts['repeated']:,} of them repeats")]


def _line(name: str, words: str) -> str:
    return f"{name:<17}{words}".rstrip()


LINE_EVERY = 10.0
"""Seconds between two lines where there is no terminal."""


class StatusBlock:
    """Some lines that always show the newest state.

    Args:
        out: where to write; a terminal gets a block, anything else one line every few seconds.
    """

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
