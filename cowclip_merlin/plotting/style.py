"""Define the style of figures, and save them so that equal figures are equal files."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cowclip_merlin.plotting.colors import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY_BLUE, VERMILION
from cowclip_merlin.system.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLES: tuple[dict[str, str], ...] = (
    {"color": BLUE, "marker": "o", "linestyle": "-"},
    {"color": VERMILION, "marker": "s", "linestyle": "--"},
    {"color": BLACK, "marker": "^", "linestyle": ":"},
    {"color": GREEN, "marker": "D", "linestyle": "-."},
    {"color": PURPLE, "marker": "v", "linestyle": "-"},
    {"color": ORANGE, "marker": "P", "linestyle": "--"},
)

# Seven colors and four dashes have no common divisor, so pairs repeat only after 28 curves.
_COLORS = (BLUE, VERMILION, BLACK, GREEN, PURPLE, ORANGE, SKY_BLUE)
_MARKERS = ("o", "s", "D", "^", "v", "P", "X")
_DASHES: tuple[str | tuple[int, tuple[float, ...]], ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1, 1)),
    (0, (5, 1, 1, 1)),
)

# Text as paths looks the same with any installed fonts. With fixed ids and no date, the same
# numbers make the same file.
_SVG_SETTINGS = {"svg.fonttype": "path", "svg.hashsalt": "cowclip"}
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))


@contextmanager
def figure_settings() -> Iterator[None]:
    """Set the widths, sizes and grid of Matplotlib."""
    import matplotlib

    settings = {
        "lines.linewidth": 1.3,
        "lines.markersize": 4,
        "font.size": 9,
        "axes.titlesize": 10,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.linewidth": 0.4,
        "grid.alpha": 0.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with matplotlib.rc_context(settings):
        yield


def new_figure(width: float, height: float) -> Figure:
    """Create an empty figure of this size in inches, without a window."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def style(index: int, points: int) -> dict[str, Any]:
    """Return the look of the n-th of up to 28 curves; a long one has markers at some points only.

    >>> len({str(style(index, 1)) for index in range(28)})
    28
    """
    look = STYLES[index] if index < len(STYLES) else style_of_many(index)
    return look | {"markevery": max(1, points // 12)}


def style_of_many(index: int) -> dict[str, Any]:
    """Return color, marker and dashes of the n-th of up to 28 curves.

    >>> style_of_many(0)["color"], style_of_many(7)["color"]
    ('#0072B2', '#0072B2')
    >>> style_of_many(0)["linestyle"] == style_of_many(7)["linestyle"]
    False
    """
    return {
        "color": _COLORS[index % len(_COLORS)],
        "marker": _MARKERS[index % len(_MARKERS)],
        "linestyle": _DASHES[index % len(_DASHES)],
        "markersize": 4.5,
        "linewidth": 1.4,
    }


def save_figure(figure: Figure, path: Path) -> None:
    """Save a Matplotlib figure as SVG; equal figures make equal files."""
    svg = svg_text(figure)
    with atomic_write(path) as temporary:
        temporary.write_text(svg, encoding="utf-8")


def svg_text(figure: Figure) -> str:
    """Return a Matplotlib figure as SVG, without a date and with ids that do not change."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context(_SVG_SETTINGS), warnings.catch_warnings():
        # A column's name may have characters that the font lacks; a box stands for each.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(buffer, format="svg", metadata=_NO_METADATA)
    return buffer.getvalue()
