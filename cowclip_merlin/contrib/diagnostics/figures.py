"""Draw the figures of `cowclip inspect`, and Figure 4 of the paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cowclip_merlin.plotting.style import STYLES, figure_settings, new_figure, save_figure, style
from cowclip_merlin.types import Array

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.figure import Figure


NORMS = {
    "w_norm": "||w||",
    "g_norm": "||g||",
    "g_norm_per_cnt": "||g|| / cnt",
}


def clip_over_steps(table: pd.DataFrame) -> Figure:
    """Draw the clipped share of the batch's distinct rows, and the mean factor, by step."""
    every = table[table.scope == "all"]
    figure = new_figure(7.2, 3.0)
    columns = {"clipped_share": "rows clipped (%)", "mean_clip_factor": "mean clip factor"}
    for index, (axes, column) in enumerate(zip(figure.subplots(1, 2), columns)):
        scale = 100 if column == "clipped_share" else 1
        axes.plot(every.step, scale * every[column], **style(index, len(every)))
        axes.set(xlabel="step", ylabel=columns[column])
        _set_y_limits(axes, 0, scale)
    return figure


def _set_y_limits(axes: Axes, least: float, most: float) -> None:
    """Set limits around the values, within their possible range and at least 1% of it wide."""
    low, high = axes.dataLim.intervaly
    margin = max(0.08 * (high - low), 0.01 * (most - least))
    axes.set_ylim(max(least - 0.01 * most, low - margin), min(1.01 * most, high + margin))


def clip_by_field(table: pd.DataFrame) -> Figure:
    """Draw each field's clipped share and factor at the last probe, and the share by step."""
    fields = table[table.scope == "field"]
    last = fields[fields.step == fields.step.max()].sort_values(["clipped_share", "rows"])
    figure = new_figure(8.4, 1.4 + 0.19 * len(last))
    dots, over_steps = figure.subplots(1, 2, sharey=True, width_ratios=(1, 1.2))
    rows = range(len(last))
    _draw_last_probe(dots, rows, last)
    figure.legend(*dots.get_legend_handles_labels(), loc="outside lower left", ncols=2)
    wide = fields.pivot(index="group", columns="step", values="clipped_share")
    image = _draw_heatmap(
        over_steps, wide.columns.to_numpy(), 100 * wide.loc[last.group].to_numpy()
    )
    figure.colorbar(image, ax=over_steps, label="rows clipped (%)")
    return figure


def _draw_heatmap(axes: Axes, steps: Array, shares: npt.NDArray[np.float64]) -> QuadMesh:
    """Draw one cell for each field and probe, from the probe's step to the next probe's."""
    ends = np.append(steps, steps[-1] + (steps[-1] - steps[-2] if len(steps) > 1 else 1))
    most = max(1.0, float(np.nanmax(shares)))
    rows = np.arange(len(shares) + 1) - 0.5
    # Rasterized: an SVG with thousands of squares is slow in browsers.
    image = axes.pcolormesh(ends, rows, shares, cmap="Blues", vmin=0, vmax=most, rasterized=True)
    axes.grid(False)
    axes.set(xlabel="step", title="rows clipped over the steps")
    return image


def _draw_last_probe(axes: Axes, rows: Sequence[int], last: pd.DataFrame) -> None:
    shown = (("clipped_share", "rows clipped"), ("mean_clip_factor", "mean clip factor"))
    for index, (column, label) in enumerate(shown):
        drawn = style(index, 1) | {"linestyle": "none", "label": label}
        axes.plot(100 * last[column], rows, **drawn)
    axes.set(xlabel="%", xlim=(-3, 103), ylabel="field", title=f"step {last.step.iloc[0]:,}")
    axes.set_yticks(rows, last.group, fontsize=8)


def norms_by_decile(table: pd.DataFrame) -> Figure:
    """Draw the mean norms by frequency decile, at the first, the middle and the last probe."""
    deciles = table[table.scope == "decile"]
    steps = sorted(deciles.step.unique())
    shown = sorted({steps[0], steps[len(steps) // 2], steps[-1]})
    figure = new_figure(9.6, 3.4)
    panels = figure.subplots(1, 3)
    for axes, (column, label) in zip(panels, NORMS.items()):
        for index, step in enumerate(shown):
            at = deciles[deciles.step == step]
            x = at.group.astype(int)
            axes.plot(x, at[column], label=f"step {step:,}", **style(index, 1))
        axes.set(title=f"mean {label}", xlabel="frequency decile (10: most frequent)")
        axes.set_xticks(range(1, 11))
        if (deciles[column] > 0).any():
            axes.set_yscale("log")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def rates_and_speed(table: pd.DataFrame) -> Figure:
    """Draw the learning rates, and the rows per second between probes, by step."""
    every = table[table.scope == "all"]
    figure = new_figure(7.2, 3.0)
    rates, speed = figure.subplots(1, 2)
    for index, name in enumerate(("embedding", "dense")):
        rates.plot(every.step, every[f"{name}_lr"], label=name, **style(index, len(every)))
    rates.set(xlabel="step", ylabel="learning rate")
    rates.ticklabel_format(axis="y", style="sci", scilimits=(0, 0), useMathText=True)
    rates.legend(fontsize=8)
    speed.plot(every.step, every.rows_per_second / 1000, **style(2, len(every)))
    speed.set(xlabel="step", ylabel="thousand rows/s", ylim=(0, None))
    return figure


def reliability(rows: Sequence[Mapping[str, str]]) -> Figure:
    """Draw the observed click rate by the predicted one, in bins of equal rows.

    Args:
        rows: those of one epoch of `reliability.csv`, at least one.
    """
    figure = new_figure(4.2, 4.0)
    axes = figure.subplots()
    predicted, observed = (
        [100 * float(row[name]) for row in rows] for name in ("predicted", "observed")
    )
    most = 1.05 * max(*predicted, *observed)
    axes.plot([0, most], [0, most], color="gray", linewidth=0.8, label="calibrated")
    label = f"{rows[0]['split']} rows, epoch {rows[0]['epoch']}"
    axes.plot(predicted, observed, label=label, **style(0, len(rows)))
    axes.set(xlim=(0, most), ylim=(0, most), xlabel="predicted clicks (%)")
    axes.set(ylabel="observed clicks (%)", title="mean of each bin of equal rows")
    axes.legend(fontsize=8, loc="upper left")
    return figure


FIGURES: Mapping[str, Callable[[pd.DataFrame], Figure]] = MappingProxyType(
    {
        "clip": clip_over_steps,
        "fields": clip_by_field,
        "norms": norms_by_decile,
        "rates": rates_and_speed,
    }
)
"""Drawing functions by the name of their file."""


_CLIP_FACTOR_FIGURES = ("clip", "fields")


RELIABILITY = "reliability"
"""Name of the file of the figure that `reliability` draws."""


def write_figures(
    table: pd.DataFrame, folder: Path, bins: Sequence[Mapping[str, str]] = ()
) -> list[Path]:
    """Draw all figures as SVG; leave out the figures of clip factors if none exist (Clippy).

    Args:
        table: the records of the probes.
        folder: of the files.
        bins: rows of `reliability.csv` to draw; none: leave out their figure.

    Returns:
        The paths of the files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    left_out = _CLIP_FACTOR_FIGURES if table.clipped_share.isna().all() else ()
    for name, draw in FIGURES.items():
        if name in left_out:
            continue
        files.append(folder / f"{name}.svg")
        with figure_settings():
            save_figure(draw(table), files[-1])
    if bins:
        files.append(folder / f"{RELIABILITY}.svg")
        with figure_settings():
            save_figure(reliability(bins), files[-1])
    return files


GROUPS = ((1, 1, "once"), (2, 9, "2 to 9 times"), (10, None, "10 times or more"))
BINS = 40


def figure_4(cnt: npt.ArrayLike, g_norm: npt.ArrayLike) -> Figure:
    """Draw the paper's Figure 4: (a) gradient norms, (b) gradient norms divided by `cnt`.

    There is one curve for each group of ids by their occurrences in the batch. In (a) the groups
    differ, since a row's gradient is a sum over its occurrences. In (b) the norm is divided by
    that count. The logarithmic axis omits gradients of norm 0; the legend's title gives their
    number.

    Args:
        cnt: occurrences of each row in the batch, [u]; the figure leaves out rows with 0.
        g_norm: norm of each row's data gradient, [u]; see `gradient_norms` and `probe_run`.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if the two differ in length, or every count is 0.

    >>> len(figure_4([1, 3, 0], [0.1, 0.4, 0.0]).axes)
    2
    """
    cnt, g_norm = _present_rows(np.asarray(cnt), np.asarray(g_norm, np.float64))
    zero = int((g_norm == 0).sum())
    cnt, g_norm = cnt[g_norm > 0], g_norm[g_norm > 0]
    with figure_settings():
        figure = new_figure(7.6, 3.4)
        panels = figure.subplots(1, 2, sharey=True)
        for axes, values, name in zip(
            panels, (g_norm, g_norm / cnt), ("(a)  ||g||", "(b)  ||g|| / cnt")
        ):
            _draw(axes, values, cnt)
            axes.set(xlabel=name[5:], title=name, xscale="log")
        panels[0].set_ylabel("rows of the group (%)")
        title = "occurrences in the batch" + (f" ({zero:,} rows of norm 0 left out)" * bool(zero))
        handles = panels[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=len(GROUPS), title=title)
    return figure


def _present_rows(
    cnt: Array, g_norm: npt.NDArray[np.float64]
) -> tuple[Array, npt.NDArray[np.float64]]:
    """Return the counts and norms of the rows that are in the batch."""
    if cnt.shape != g_norm.shape:
        raise ValueError(f"{cnt.shape} counts but {g_norm.shape} norms")
    present = cnt > 0
    if not present.any():
        raise ValueError("no row is in the batch")
    return cnt[present], g_norm[present]


def _draw(axes: Axes, values: npt.NDArray[np.float64], cnt: Array) -> None:
    """Draw the share of each group's rows by value, in bins of equal logarithmic width."""
    if not len(values):
        return
    low, high = np.log10(values.min()), np.log10(values.max())
    edges = np.logspace(low - 0.05, high + 0.05, BINS + 1)
    for (least, most, label), look in zip(GROUPS, STYLES):
        mine = values[(cnt >= least) & (cnt <= (most or np.inf))]
        shares = 100 * np.histogram(mine, edges)[0] / max(len(mine), 1)
        middle = np.sqrt(edges[1:] * edges[:-1])
        axes.plot(middle, shares, label=f"{label}: {len(mine):,} rows", markevery=4, **look)
