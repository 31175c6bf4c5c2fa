"""Draw the computed scaling of `workers.py`."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any

from cowclip_merlin.plotting.colors import BLACK, BLUE, VERMILION
from cowclip_merlin.plotting.style import figure_settings, new_figure, save_figure
from worker_scaling.text import NAMES

BOUND = "without exchange"
STYLES = {
    BOUND: {"color": BLACK, "linewidth": 0.8},
    "sharded": {"color": BLUE, "marker": "o"},
    "mirrored": {"color": VERMILION, "marker": "s"},
}
DASHES = ("-", "--", "-.", ":")
"""Lines of the vocabularies, in the order of the result."""

Curves = dict[tuple[str, int], list[tuple[int, float]]]


def curves(results: list[dict[str, Any]]) -> Curves:
    """Return number of workers and speed-up for each kind of tables and number of ids.

    BOUND is a third kind: the speed-up if only the batch were divided.
    """
    found: Curves = {}
    for r in results:
        key = (r["tables"], r["vocabulary"])
        found.setdefault(key, []).append((r["workers"], r["speed_up"]))
        if r["tables"] == "mirrored":
            bound = (BOUND, r["vocabulary"])
            found.setdefault(bound, []).append((r["workers"], r["speed_up_without_exchange"]))
    return found


def draw_figure(computed: dict[str, Any], path: Path) -> None:
    """Draw the speed-up by workers: a panel for machines and one for GPUs, logarithmic axes."""
    with figure_settings():
        figure = new_figure(9.0, 4.2)
        figure.suptitle(
            f"Computed, not measured: speed-up of a step of {computed['global_batch']:,} rows"
        )
        panels = figure.subplots(1, len(NAMES))
        for axes, (kind, name) in zip(panels, NAMES.items(), strict=True):
            _draw(axes, computed[kind]["results"])
            axes.set_xlabel(name)
            axes.set_title(_assumed(computed[kind]["network"]), fontsize=8.5)
        panels[0].set_ylabel("speed-up against one")
        panels[0].legend(fontsize=7.5, loc="upper left")
        save_figure(figure, path)


def _assumed(network: dict[str, float]) -> str:
    return (
        f"assumed: {network['bandwidth']:g} GB/s, {network['latency']:g} ms per exchange, "
        f"{network['hop']:g} ms per hop"
    )


def _draw(axes: Any, results: list[dict[str, Any]]) -> None:
    workers = sorted({r["workers"] for r in results})
    vocabularies = list(dict.fromkeys(r["vocabulary"] for r in results))
    axes.plot(workers, workers, color="0.7", linewidth=0.8, label="as many times as workers")
    found = curves(results)
    for tables, style in STYLES.items():
        for vocabulary, dashes in zip(vocabularies, cycle(DASHES)):
            x, y = zip(*found[tables, vocabulary], strict=True)
            label = f"{tables}, {vocabulary / 1e6:g}M ids"
            axes.plot(x, y, **{"linestyle": dashes, "label": label, **style})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for axis in (axes.xaxis, axes.yaxis):  # 8, not 2^3
        axis.set_ticks(workers, [str(n) for n in workers])
