"""Draw the paper's figures from plain numbers and from results, and save them with their texts."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cowclip_merlin.errors import MALFORMED, InputError
from cowclip_merlin.experiments.definitions import Experiment, LogExperiment
from cowclip_merlin.experiments.sizing import PAPER_ROWS
from cowclip_merlin.plotting.colors import BLACK, SKY_BLUE
from cowclip_merlin.plotting.style import new_figure, style_of_many, svg_text
from cowclip_merlin.settings.json_dataclass import dataclass_from_json
from cowclip_merlin.system.files import atomic_write, read_json, write_json
from cowclip_merlin.workflows.prepared.report import plot_frequencies

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Runs that differ only in their seed, measured at the same values of x.

    `runs` has one sequence of values per seed, as long as `x`; NaN for missing values.

    >>> Curve(label="baseline", x=(1, 2), runs=((0.7, 0.8), (0.9, 0.8))).means()
    [0.8, 0.8]
    """

    label: str
    x: Sequence[float]
    runs: Sequence[Sequence[float]]

    def __post_init__(self) -> None:
        """Refuse runs that cannot be drawn."""
        if not self.runs or any(len(run) != len(self.x) for run in self.runs):
            raise ValueError(f"{self.label}: every run must have {len(self.x)} values")

    def _of_seeds(self, function: Any) -> list[float]:
        """Apply a function to the finite values of all seeds at each x; NaN if there are none."""
        finite = [[v for v in column if math.isfinite(v)] for column in zip(*self.runs)]
        return [function(values or [math.nan]) for values in finite]

    def means(self) -> list[float]:
        """Return for each x the mean of the finite values."""
        return self._of_seeds(statistics.fmean)

    def range(self) -> tuple[list[float], list[float]]:
        """Return for each x the minimum and maximum of the finite values."""
        return self._of_seeds(min), self._of_seeds(max)


def _escape_dollars(text: str) -> str:
    """Escape dollar signs, so that matplotlib does not read them as a formula."""
    return text.replace("$", r"\$")


def batch_text(batch: float) -> str:
    """Format a batch size like the paper; "K" means 1024.

    >>> batch_text(512), batch_text(131072), batch_text(1536)
    ('512', '128K', '1536')
    """
    whole = batch >= 1024 and batch % 1024 == 0
    return f"{batch / 1024:.0f}K" if whole else f"{batch:g}"


def panels(count: int, *, width: float = 4.0, height: float = 3.4) -> tuple[Figure, list[Axes]]:
    """Create a figure and its panels, two per row; a single panel is wider."""
    columns, rows = min(count, 2), math.ceil(count / 2)
    size = (6.4 if count == 1 else width * columns, height * (1 + 0.8 * (rows - 1)))
    figure = new_figure(*size)
    figure.get_layout_engine().set(wspace=0.05)
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in grid[count:]:
        unused.remove()
    for one in grid[:count]:
        one.grid(True, which="major", linewidth=0.4, alpha=0.5)
        one.tick_params(labelsize=9)
        one.spines[["top", "right"]].set_visible(False)
    return figure, grid[:count]


def whole_numbers(axes: Axes) -> None:
    """Put the ticks of the x axis at whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10, min_n_ticks=1))


def _draw_curve(axes: Axes, curve: Curve, look: dict[str, Any]) -> None:
    """Plot the means of a curve, and the range of its seeds as a band."""
    axes.plot(curve.x, curve.means(), label=_escape_dollars(curve.label), **look)
    if len(curve.runs) > 1:
        low, high = curve.range()
        axes.fill_between(curve.x, low, high, color=look["color"], alpha=0.18, linewidth=0)


def _legend_below(figure: Figure, axes: Sequence[Axes], *, title: str = "") -> None:
    """Put the legend of the fullest panel below all of them, where it covers nothing."""
    found = [one.get_legend_handles_labels() for one in axes]
    handles, labels = max(found, key=lambda pair: len(pair[1]))
    # A letter of this size is about 5 points wide, a line and its margins 60.
    entry = 60 + 5 * max(map(len, labels), default=0)
    most = max(1, min(len(labels), int(72 * figure.get_figwidth() / entry)))
    rows = math.ceil(len(labels) / most)  # as full as each other
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=math.ceil(len(labels) / max(1, rows)) or 1,
        fontsize=9,
        title=title or None,
        title_fontsize=8.5,
        frameon=False,
        handlelength=3.2,
    )


def _batch_axis(axes: Axes, batches: Sequence[float], *, times: bool = False) -> None:
    """Make the x axis logarithmic, with a tick at each batch, or at each multiplier as "8x"."""
    ticks = sorted(set(batches))
    axes.set_xscale("log", base=2)
    names = [f"{t:g}x" if times else batch_text(t) for t in ticks]
    axes.set_xticks(ticks, names)
    axes.set_xticks([], minor=True)
    if len(ticks) > 7:
        axes.tick_params(axis="x", rotation=45)


def draw_ids(counts: Mapping[str, npt.ArrayLike]) -> Figure:
    """Draw occurrences by rank, one line per field (left), and ids by occurrences (right).

    `counts` has, by field, the occurrences of each of its ids in the training rows, in any order.

    >>> len(draw_ids({"C1": [5, 1, 1], "C2": [7]}).axes)
    2
    """
    falling = {}
    for field, values in counts.items():
        found = np.asarray(values, dtype=np.int64)
        falling[_escape_dollars(field)] = np.sort(found[found > 0])[::-1]
    together = np.concatenate([*falling.values()]) if falling else np.zeros(0, np.int64)
    if not len(together):
        raise ValueError("no ids to draw")
    few = len(falling) <= 10
    figure, (left, right) = panels(2, width=4.2, height=3.4 if few else 4.4)
    plot_frequencies(left, falling)
    left.set(xlabel="id, by descending frequency", ylabel="occurrences in the training rows")
    heights = np.bincount(np.log2(together).astype(int))  # of 1, 2 to 3, 4 to 7, ...
    edges = 2.0 ** np.arange(len(heights) + 1)
    right.stairs(heights, edges, fill=True, color=SKY_BLUE, edgecolor=BLACK, linewidth=0.8)
    right.set(xscale="log", yscale="log", xlabel="occurrences, in bins that double")
    right.set(ylabel="ids, all fields", ylim=(0.7, None))
    once = 100 * float((together == 1).mean())
    right.set_title(f"{len(together):,} ids; seen once: {once:.1f}%", fontsize=10)
    _legend_below(figure, [left], title="field")
    return figure


def draw_epochs(measures: Mapping[str, Sequence[Curve]], *, period: str = "epoch") -> Figure:
    """Draw one panel per measure: the mean over seeds by epoch, and their range as a band.

    `measures` has, by label of the vertical axis, curves over epochs or other periods, counted from
    1. Curves with the same label have the same style in every panel. Equal ones are drawn once.

    >>> curve = Curve(label="baseline", x=(1, 2), runs=((78.0, 79.0), (78.2, 79.1)))
    >>> len(draw_epochs({"test AUC, %": [curve]}).axes)
    1
    """
    if not any(measures.values()):
        raise ValueError("no runs to draw by epoch")
    labels = list(dict.fromkeys(curve.label for curves in measures.values() for curve in curves))
    figure, axes = panels(len(measures))
    for one, (measure, curves) in zip(axes, measures.items()):
        for index, curve in enumerate(curves):
            if curve not in curves[:index]:
                _draw_curve(one, curve, style_of_many(labels.index(curve.label)))
        one.set(xlabel=period, ylabel=_escape_dollars(measure))
        whole_numbers(one)
    seeds = max(len(curve.runs) for curves in measures.values() for curve in curves)
    title = "line: mean over seeds; band: minimum to maximum" if seeds > 1 else "one seed"
    _legend_below(figure, axes, title=title)
    return figure


def error_bars(axes: Axes, curve: Curve, look: dict[str, Any]) -> None:
    """Plot the means of a curve, with bars from the minimum to the maximum of the seeds."""
    means, (low, high) = curve.means(), curve.range()
    ends = [[m - x for m, x in zip(means, low)], [x - m for m, x in zip(means, high)]]
    bars = ends if len(curve.runs) > 1 else None
    look = look | {"capsize": 2.5, "elinewidth": 1}
    axes.errorbar(curve.x, means, yerr=bars, label=_escape_dollars(curve.label), **look)


def beside_published(
    ours: Sequence[Curve], published: Sequence[Curve]
) -> tuple[Figure, list[Axes]]:
    """Draw curves with error bars; published numbers have a panel of their own.

    Each panel has its own scale: on another data set the heights differ, so compare the shapes.
    """
    shown = {"measured here": ours, "published": published} if published else {"": ours}
    labels = list(dict.fromkeys(curve.label for curves in shown.values() for curve in curves))
    figure, axes = panels(len(shown))
    for one, (title, curves) in zip(axes, shown.items()):
        for curve in curves:
            error_bars(one, curve, style_of_many(labels.index(curve.label)))
        one.set_title(title, fontsize=10)
    return figure, axes


def draw_multipliers(ours: Sequence[Curve], published: Sequence[Curve] = ()) -> Figure:
    """Draw the test AUC against the multiple of the base batch, ours next to the paper's.

    >>> curve = Curve(label="sqrt", x=(1, 8), runs=((78.0, 77.0),))
    >>> len(draw_multipliers([curve], [curve]).axes)
    2
    """
    if not ours:
        raise ValueError("no runs to draw by multiplier")
    figure, axes = beside_published(ours, published)
    for one, curves in zip(axes, (ours, published)):
        _batch_axis(one, [x for curve in curves for x in curve.x], times=True)
        one.set(xlabel="batch, as a multiple of the base batch", ylabel="test AUC, %")
    several = any(len(curve.runs) > 1 for curve in ours)
    _legend_below(figure, axes, title="bars: minimum to maximum of the seeds" if several else "")
    return figure


def draw_by_label(ours: Curve, published: Curve, labels: Sequence[str], *, axis: str) -> Figure:
    """Draw AUCs of lines, whose x are their places among the labels, beside the published ones."""
    figure, axes = beside_published([ours], [published] if published.x else [])
    for one in axes:
        one.set_xticks(range(len(labels)), labels)
        one.set(xlabel=axis, ylabel="AUC, %", xlim=(-0.5, len(labels) - 0.5))
    return figure


# 10 epochs of DeepFM on Criteo on one V100: the published minutes as seconds per epoch.
PAPER_EPOCH_SECONDS: Mapping[int, float] = {
    1024 * 2**i: minutes * 60 / 10 for i, minutes in enumerate((768, 390, 204, 102, 48, 27, 15, 9))
}


def paper_times() -> Curve:
    """Return the paper's seconds per epoch by batch."""
    return Curve(
        label="paper, one V100",
        x=tuple(PAPER_EPOCH_SECONDS),
        runs=(tuple(PAPER_EPOCH_SECONDS.values()),),
    )


def step_ms(curve: Curve, rows: int) -> Curve:
    """Compute milliseconds per step from seconds per epoch and the rows of an epoch.

    >>> [round(ms) for ms in step_ms(paper_times(), PAPER_ROWS).runs[0]][::7]
    [114, 171]
    """
    steps = [math.ceil(rows / batch) for batch in curve.x]
    runs = [[1000 * s / n for s, n in zip(run, steps)] for run in curve.runs]
    return Curve(label=curve.label, x=curve.x, runs=runs)


def draw_times(ours: Sequence[Curve], *, rows: int) -> Figure:
    """Draw relative time of an epoch (left) and milliseconds of a step (right) by batch.

    All of our curves are relative to the smallest batch of the first one, which shows a cheaper
    update at the small batch. The paper's curve is relative to its own smallest batch.

    `ours` are seconds per epoch by batch; the rows of an epoch tell the number of steps.

    >>> figure = draw_times([Curve(label="dense", x=(256, 512), runs=((9.0, 5.0),))], rows=10_000)
    >>> [axes.get_xscale() for axes in figure.axes]
    ['log', 'log']
    """
    if not ours:
        raise ValueError("no times to draw")
    figure, (left, right) = panels(2)
    unit = ours[0].means()[0]
    paper = (paper_times(), PAPER_EPOCH_SECONDS[1024], PAPER_ROWS)
    curves = [*((curve, unit, rows) for curve in ours), paper]
    for index, (curve, one, count) in enumerate(curves):
        runs = [[seconds / one for seconds in run] for run in curve.runs]
        _draw_curve(left, Curve(label=curve.label, x=curve.x, runs=runs), style_of_many(index))
        _draw_curve(right, step_ms(curve, count), style_of_many(index))
    batches = [x for curve, _, _ in curves for x in curve.x]
    for axes, name in ((left, "time of an epoch, relative"), (right, "ms per step")):
        axes.set_yscale("log")
        _batch_axis(axes, batches)
        axes.set(xlabel="batch", ylabel=name)
        _plain_numbers(axes)
    _legend_below(figure, [left])
    return figure


def _plain_numbers(axes: Axes) -> None:
    """Write 40, not 4 x 10^1, because readers read numbers from this axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

    low, high = axes.get_ylim()
    marks = (1.0,) if high / low > 1000 else (1.0, 2.0, 5.0)
    # A short axis may contain no power of ten, nor 2 or 5 times a power of ten.
    short = high / low < 10
    locator = MaxNLocator(6) if short else LogLocator(subs=marks, numticks=20)
    axes.yaxis.set_major_locator(locator)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_yticks([], minor=True)


@dataclass(frozen=True, kw_only=True)
class FigureFile:
    """A figure with its texts."""

    name: str  # of the experiment and of the files
    title: str
    caption: str
    alt: str  # for readers who cannot see the figure
    data: str  # name of the data set and its size
    command: str
    svg: str
    fingerprint: str = ""  # of the data; empty if unknown


_NAME = re.compile(r"[A-Za-z0-9_-]+")


def write_figure(folder: Path, figure: Figure, **texts: str) -> Path:
    """Save a matplotlib figure as `<folder>/<name>.svg`, and its texts as `<name>.json`.

    The texts are those of `FigureFile`. Returns the path of the SVG.
    """
    if not _NAME.fullmatch(texts["name"]):
        raise ValueError(f"{texts['name']!r} cannot name a figure: letters, digits, - and _ only")
    made = FigureFile(svg=svg_text(figure), **texts)
    path = folder / f"{made.name}.svg"
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        temporary.write_text(made.svg, encoding="utf-8")
    write_json(path.with_suffix(".json"), {k: v for k, v in asdict(made).items() if k != "svg"})
    return path


def write_experiment_figure(
    out: Path,
    figure: Figure,
    experiment: Experiment | LogExperiment,
    texts: Mapping[str, str],
    **changed: str,
) -> str:
    """Write a figure of an experiment to a results folder; return the line to print.

    `texts` are `data`, `command` and `fingerprint`. The experiment gives the others, unless they
    are changed.
    """
    given = {
        "name": experiment.name,
        "title": experiment.title,
        "caption": experiment.caption or f"Claim: {experiment.claim}",
        **changed,
    }
    path = write_figure(out / "figures", figure, **given, alt=given["title"], **texts)
    return f"figure: {path}"


def read_figure(path: str | Path) -> FigureFile:
    """Read a figure of `write_figure`, given the path of the JSON or of the SVG.

    Raises:
        InputError: if one of the two files is missing or damaged.
    """
    path = Path(path).with_suffix(".json")
    texts, drawing = read_json(path), path.with_suffix(".svg")
    try:
        svg = drawing.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{drawing}: no such file; write it again") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{drawing}: not SVG ({error}); write it again") from None
    try:
        figure = dataclass_from_json(FigureFile, texts | {"svg": svg})
    except MALFORMED as error:
        raise InputError(
            f"{path}: is not the text of a figure ({error!s:.80}); write it again with cowclip "
            "experiment"
        ) from None
    if figure.name != path.stem or not _NAME.fullmatch(path.stem):  # ids on the page
        raise InputError(f"{path}: name is {figure.name!r:.40}, not the file's; write it again")
    return figure
