"""Training runs: settings, loop, checkpoints, records."""

from __future__ import annotations

from cowclip_merlin.training.run import train
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.training.stop_signals import Stopped
from cowclip_merlin.training.trained_run import evaluate_run, export_run, input_columns, load_run

__all__ = [
    "RunSettings",
    "Stopped",
    "evaluate_run",
    "export_run",
    "input_columns",
    "load_run",
    "train",
]
