"""Training runs: settings, loop, checkpoints, records."""

from __future__ import annotations

from cowclip_merlin.training.finished import evaluate_run, export_run, input_columns, load_run
from cowclip_merlin.training.run import train
from cowclip_merlin.training.settings import RunSettings
from cowclip_merlin.training.stop import Stopped

__all__ = [
    "RunSettings",
    "Stopped",
    "evaluate_run",
    "export_run",
    "input_columns",
    "load_run",
    "train",
]
