"""Draw the demo's results: AUC, rows and latency."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin.demo.measuring.probes import STAGES
from cowclip_merlin.demo.measuring.scoring import BEST, FROZEN, ONLINE
from cowclip_merlin.plotting.colors import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY_BLUE, VERMILION
from cowclip_merlin.plotting.style import figure_settings, new_figure, save_figure
from cowclip_merlin.types import Json

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
