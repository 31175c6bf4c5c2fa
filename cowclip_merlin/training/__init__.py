"""Training runs: settings, loop, checkpoints, records."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from cowclip_merlin.system.graceful_stop import Stopped
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.training.scoring.score_files import ScoreSummary, score_files
from cowclip_merlin.training.scoring.scorer import Scorer
from cowclip_merlin.training.trained_run import evaluate_run, export_run, input_columns, load_run

if TYPE_CHECKING:
    from cowclip_merlin.train import train

__all__ = [
    "RunSettings",
    "ScoreSummary",
    "Scorer",
    "Stopped",
    "evaluate_run",
    "export_run",
    "input_columns",
    "load_run",
    "score_files",
    "train",
]


def __getattr__(name: str) -> Any:
    # `train` also imports the diagnostics, which import the modules of this folder.
    if name == "train":
        return importlib.import_module("cowclip_merlin.train").train
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
