"""Measure what the clip does during a training, without changing the training.

A probe makes one more forward and backward pass over the next batch. It changes no weight: a run
with diagnostics ends in the same weights, bit by bit, as a run without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cowclip_merlin.choices import contributed

if TYPE_CHECKING:
    from cowclip_merlin.contrib.diagnostics.probe import RowNorms, gradient_norms, probe_run
    from cowclip_merlin.contrib.diagnostics.record import read_diagnostics
    from cowclip_merlin.contrib.diagnostics.report import figure_4

__all__ = ["RowNorms", "figure_4", "gradient_norms", "probe_run", "read_diagnostics"]


def __getattr__(name: str) -> Any:
    if name in __all__:  # some of their modules import TensorFlow or Matplotlib
        return contributed(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
