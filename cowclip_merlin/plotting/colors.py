"""Colours of all figures: those of Okabe and Ito, told apart by the colour-blind."""

from __future__ import annotations

BLACK = "#000000"
BLUE = "#0072B2"
GREEN = "#009E73"
ORANGE = "#E69F00"
PURPLE = "#CC79A7"
SKY_BLUE = "#56B4E9"
VERMILION = "#D55E00"
