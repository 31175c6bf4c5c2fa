"""Summarize a prepared data set in a figure and a Markdown page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cowclip_merlin.plotting.colors import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY_BLUE, VERMILION
from cowclip_merlin.plotting.style import new_figure, save_figure
from cowclip_merlin.targets import only_clicks
from cowclip_merlin.workflows.prepared.changes import format_shares
from cowclip_merlin.workflows.prepared.counts import FieldCounts
from cowclip_merlin.workflows.prepared.folder import PreparedData

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BATCHES = tuple(1024 * 2**i for i in range(8))


def draw_frequencies(counts: FieldCounts, path: Path) -> None:
    """Draw ids by frequency, one line per field, both axes logarithmic (Figure 3 of the paper)."""
    figure = new_figure(7.5, 4.8)
    axes = figure.add_subplot()
    plot_frequencies(axes, counts)
    axes.set(xlabel="id, by descending frequency", ylabel="occurrences")
    axes.grid(True, which="major", linewidth=0.4, alpha=0.5)
    if any(map(len, counts.values())):
        axes.legend(title="field", fontsize=7, ncols=2, loc="upper left", bbox_to_anchor=(1.01, 1))
    save_figure(figure, path)


def plot_frequencies(axes: Axes, counts: Mapping[str, npt.NDArray[np.int64]]) -> None:
    """Plot occurrences by rank into matplotlib axes, the field with the most ids first."""
    colors = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY_BLUE, BLACK)
    # Markers distinguish the colors in gray print; line styles distinguish repeated colors.
    markers, styles = "os^vDPX", ("-", "--", ":", "-.")
    for index, field in enumerate(sorted(counts, key=lambda field: -len(counts[field]))):
        count = counts[field]
        if not len(count):
            continue
        # More points than print can resolve only enlarge the file.
        keep = np.unique(np.geomspace(1, len(count), 400).astype(int)) - 1
        axes.plot(
            keep + 1,
            count[keep],
            color=colors[index % len(colors)],
            linestyle=styles[index // len(colors) % len(styles)],
            linewidth=1.1,
            marker=markers[index % len(markers)],
            markersize=3,
            markevery=max(1, len(keep) // 6),
            label=field,
        )
    axes.set(xscale="log", yscale="log")


def summary(
    data: PreparedData,
    counts: FieldCounts,
    *,
    name: str,
    unknown: Mapping[str, float] | None = None,
) -> str:
    """Return the summary as one page of Markdown."""
    fitted, total = data.fitted_rows, sum(data.rows.values())
    where = "in train" if data.recipe.fit_on == "train" else "in " + " and ".join(data.rows)
    ids = sum(map(len, counts.values()))
    once = sum(int((count == 1).sum()) for count in counts.values())
    lines = [
        f"# {name}: a {data.kind} log",
        "",
        f"- rows: {total:,} ({', '.join(f'{n:,} {split}' for split, n in data.rows.items())})",
        f"- damaged rows: {data.description['damaged']:,}",
        *_label_lines(data, total),
        f"- fields: {len(data.categorical)} categorical, {len(data.continuous)} continuous",
        f"- distinct ids {where}: {ids:,}, with reserved ones {sum(data.tables.values()):,}",
        f"- ids seen once: {100 * once / max(ids, 1):.1f}%",
        *[f"- {c} has the ids of {t}" for c, t in data.log_format.share_embedding.items()],
        *([] if unknown is None else [f"- {format_shares(unknown)}"]),
        "",
        "Ids per field, and how many of them occur more than once in an average batch "
        "(their frequency is above 1 / batch):",
        "",
        "| field | ids | seen once | " + " | ".join(f"{b // 1024}K" for b in BATCHES) + " |",
        "|---|" + "---:|" * (2 + len(BATCHES)),
    ]
    lines += [_line(field, count, fitted) for field, count in counts.items()]
    lines.append(_line("all", np.concatenate([*counts.values()]), fitted))
    return "\n".join([*lines, "", "![ids by frequency](figures/ids_by_frequency.svg)", ""])


def _label_lines(data: PreparedData, total: int) -> list[str]:
    """Return a line for each label, or the click rate if there is one."""
    if only_clicks(data.targets):
        return [f"- click rate: {100 * data.clicks / max(total, 1):.2f}%"]
    counts, lines = data.description["targets"], []
    for name, regression in data.targets:
        rows, mean = counts[name]["rows"], counts[name]["mean"]
        what = "no label" if mean is None else f"mean {mean:.6g}" if regression else f"{mean:.2%} 1"
        lines.append(f"- label {name}: {rows:,} rows, {what}")
    return lines


def _line(field: str, count: npt.NDArray[np.int64], rows: int) -> str:
    share = 100 * float((count == 1).mean()) if len(count) else 0.0
    often = [f"{int((count * batch > rows).sum()):,}" for batch in BATCHES]
    return f"| {field} | {len(count):,} | {share:.1f}% | " + " | ".join(often) + " |"
