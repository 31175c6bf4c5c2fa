"""Measure what the clip does during a training, without changing the training.

A probe makes one more forward and backward pass over the next batch. It changes no weight: a run
with diagnostics ends in the same weights, bit by bit, as a run without them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from cowclip_merlin.diagnostics.diagnostics_csv import read_diagnostics
from cowclip_merlin.diagnostics.row_norms import RowNorms

if TYPE_CHECKING:
    from cowclip_merlin.diagnostics.figures import figure_4
    from cowclip_merlin.diagnostics.probe import gradient_norms, probe_run

__all__ = ["RowNorms", "figure_4", "gradient_norms", "probe_run", "read_diagnostics"]

# Their modules import TensorFlow or Matplotlib.
_LAZY = {"figure_4": "figures", "gradient_norms": "probe", "probe_run": "probe"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
