"""Draw the paper's figures from plain numbers, as matplotlib figures and as SVG files."""

from cowclip_merlin.experiments.figures.curves import (
    PAPER_EPOCH_SECONDS,
    Curve,
    draw_epochs,
    draw_ids,
    draw_multipliers,
    draw_times,
    paper_times,
)
from cowclip_merlin.experiments.figures.files import (
    FigureFile,
    read_figure,
    write_experiment_figure,
    write_figure,
)

__all__ = [
    "PAPER_EPOCH_SECONDS",
    "Curve",
    "FigureFile",
    "draw_epochs",
    "draw_ids",
    "draw_multipliers",
    "draw_times",
    "paper_times",
    "read_figure",
    "write_experiment_figure",
    "write_figure",
]
