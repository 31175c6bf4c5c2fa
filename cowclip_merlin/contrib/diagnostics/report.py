"""The text and the figures of `cowclip inspect`, and Figure 4 of the paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cowclip_merlin import choices
from cowclip_merlin.plotting.style import STYLES, figure_settings, new_figure, save_figure, style
from cowclip_merlin.training.run_logs import target_metrics
from cowclip_merlin.types import Array, Floats

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.figure import Figure

    from cowclip_merlin.training.run_config import RunConfig

LINES = 10  # maximum number of probes in the table
FEW = 3  # with fewer probes, the text says how to get more


def format_report(
    config: RunConfig, epochs: Sequence[Mapping[str, str]], table: pd.DataFrame
) -> str:
    """Format settings, metrics (rows of `metrics.csv`) and diagnostics of a run as text."""
    last = int(table.step.max())
    probe = table[table.step == last]
    split = config.settings.scored_split
    parts = [_settings(config), _epochs(epochs, split), "clip by step\n" + _steps(table)]
    probes = table.step.nunique()
    if probes < FEW:
        parts.append(
            f"{probes} probe{'s' * (probes > 1)} in total; for more, train with a smaller "
            "--diagnostics-every"
        )
    clip = config.settings.effective_clip
    if choices.CLIPS[clip].acts_on == "update":
        parts.append(
            f"the clip {clip} bounds steps, not gradients; the table of epochs shows by how much"
        )
    parts.append(f"fields at step {last:,}, most clipped first\n" + _fields(probe))
    parts.append(
        f"norms at step {last:,} by frequency of the id, means over the batch's rows\n"
        + _deciles(probe)
    )
    return "\n\n".join(parts)


def _settings(config: RunConfig) -> str:
    """Format settings and scaled hyper-parameters in one line."""
    settings, values = config.settings, config.values
    return (
        f"{settings.model}, batch {settings.batch_size:,}, rule {settings.rule}, clip "
        f"{settings.effective_clip}, update {settings.update}, seed {settings.seed}: embedding lr "
        f"{values.embedding_lr:.4g}, dense lr {values.dense_lr:.4g}, l2 {values.l2:.4g}, "
        f"r {values.r:g}, zeta {values.zeta:g}, {values.optimizer_words}"
    )


def _epochs(epochs: Sequence[Mapping[str, str]], split: str) -> str:
    if not epochs:
        return "no epoch is finished"
    scores = _scores(epochs[0], split)
    cells = [
        (f"{float(row['epoch']):.6g}", f"{float(row['train_loss'] or 'nan'):.5f}",
         *(f"{float(row[column]):.5f}" for column in scores.values()),
         f"{float(row['rows_per_second']):,.0f}",
         _percent(float(row["clipped_share"])), f"{float(row['mean_clip_factor']):.4f}")
        for row in epochs
    ]  # fmt: skip
    head = ("epoch", "train loss", *scores, "rows/s", "clipped", "mean factor")
    return _table(head, cells)


def _scores(row: Mapping[str, str], split: str) -> dict[str, str]:
    """Map the heading of each score in the table of epochs to its column of `metrics.csv`."""
    if row.get(f"{split}_auc"):
        return {f"{split} AUC": f"{split}_auc", f"{split} log loss": f"{split}_log_loss"}
    return {
        f"{split} {name} {kind.upper()}": f"{split}_{name}_{kind}"
        for name, found in target_metrics(row, split).items()
        for kind in ("auc", "rmse")
        if kind in found
    }


def _steps(table: pd.DataFrame) -> str:
    every = table[table.scope == "all"]
    positions = np.unique(np.linspace(0, len(every) - 1, LINES).round().astype(int))
    cells = [
        (f"{row.step:,}", f"{row.rows:,.0f}", _percent(row.clipped_share),
         _number(row.mean_clip_factor, ".4f"), f"{row.dense_lr:.3g}",
         _number(row.rows_per_second, ",.0f"))
        for row in every.iloc[positions].itertuples()
    ]  # fmt: skip
    head = ("step", "distinct rows", "clipped", "mean factor", "dense lr", "rows/s")
    return _table(head, cells)


def _fields(probe: pd.DataFrame) -> str:
    fields = probe[probe.scope == "field"]
    fields = fields.sort_values(["clipped_share", "mean_clip_factor"], ascending=[False, True])
    cells = [
        (row.group, f"{row.rows:,.0f}", f"{row.occurrences / row.rows:,.1f}",
         _percent(row.clipped_share), _number(row.mean_clip_factor, ".4f"))
        for row in fields.itertuples()
    ]  # fmt: skip
    return _table(("field", "distinct rows", "cnt, mean", "clipped", "mean factor"), cells)


def _deciles(probe: pd.DataFrame) -> str:
    cells = [
        (row.group, f"{row.least_count:,.0f} to {row.most_count:,.0f}", f"{row.rows:,.0f}",
         f"{row.w_norm:.3e}", f"{row.g_norm:.3e}", f"{row.g_norm_per_cnt:.3e}",
         _percent(row.clipped_share))
        for row in probe[probe.scope == "decile"].itertuples()
    ]  # fmt: skip
    head = ("decile", "seen in training", "distinct rows", "||w||", "||g||", "||g||/cnt", "clipped")
    return _table(head, cells)


def _number(value: float, form: str) -> str:
    return "-" if np.isnan(value) else format(value, form)


def _percent(share: float) -> str:
    return _number(share, ".2%")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table with right-aligned cells.

    >>> print(_table(("a", "long"), [("10", "2")]))
       a  long
      10     2
    """
    widths = [max(map(len, cells)) for cells in zip(head, *rows)]
    lines = ["  " + "  ".join(c.rjust(w) for c, w in zip(row, widths)) for row in (head, *rows)]
    return "\n".join(lines)


NORMS = {"w_norm": "||w||", "g_norm": "||g||", "g_norm_per_cnt": "||g|| / cnt"}


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


def _draw_heatmap(axes: Axes, steps: Array, shares: Floats) -> QuadMesh:
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
    """Draw the observed click rate by the predicted one, in the bins of one epoch."""
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
    """Draw all figures as SVG, and return their files.

    Without clip factors (Clippy) or bins of `reliability.csv`, it leaves out their figures.
    """
    folder.mkdir(parents=True, exist_ok=True)
    left_out = _CLIP_FACTOR_FIGURES if table.clipped_share.isna().all() else ()
    drawn = {name: partial(draw, table) for name, draw in FIGURES.items() if name not in left_out}
    if bins:
        drawn[RELIABILITY] = partial(reliability, bins)
    for name, draw in drawn.items():
        with figure_settings():
            save_figure(draw(), folder / f"{name}.svg")
    return [folder / f"{name}.svg" for name in drawn]


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
    cnt, g_norm = np.asarray(cnt), np.asarray(g_norm, np.float64)
    if cnt.shape != g_norm.shape:
        raise ValueError(f"{cnt.shape} counts but {g_norm.shape} norms")
    if not (cnt > 0).any():
        raise ValueError("no row is in the batch")
    zero = int((g_norm[cnt > 0] == 0).sum())
    drawn = (cnt > 0) & (g_norm > 0)
    cnt, g_norm = cnt[drawn], g_norm[drawn]
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


def _draw(axes: Axes, values: Floats, cnt: Array) -> None:
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
