"""Draw the paper's figures from plain numbers, as matplotlib figures and as SVG files."""

from cowclip_merlin.experiments.figures.curve import Curve
from cowclip_merlin.experiments.figures.epochs import draw_epochs
from cowclip_merlin.experiments.figures.files import (
    FigureFile,
    read_figure,
    write_experiment_figure,
    write_figure,
)
from cowclip_merlin.experiments.figures.ids import draw_ids
from cowclip_merlin.experiments.figures.multipliers import draw_multipliers
from cowclip_merlin.experiments.figures.times import PAPER_EPOCH_SECONDS, draw_times, paper_times

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
