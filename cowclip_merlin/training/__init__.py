"""Training runs: settings, loop, checkpoints, records."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from cowclip_merlin.system.signals import Stopped
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.training.scoring.scorer import Scorer, ScoreSummary, score_files
from cowclip_merlin.training.trained_run import evaluate_run, export_run, input_columns, load_run

if TYPE_CHECKING:
    from cowclip_merlin.recipe import settings_for
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
    "settings_for",
    "train",
]


def __getattr__(name: str) -> Any:
    # Their modules import those of this folder; `train` imports the diagnostics, too.
    homes = {"train": "train", "settings_for": "recipe"}
    if name in homes:
        return getattr(importlib.import_module(f"cowclip_merlin.{homes[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
