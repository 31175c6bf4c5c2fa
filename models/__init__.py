"""The four architectures of the paper and DIN, built on Merlin models."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping

from cowclip_merlin import choices
from cowclip_merlin.models.architecture import Architecture
from cowclip_merlin.models.base import logits
from cowclip_merlin.models.columns import Columns
from cowclip_merlin.models.ctr_model import CTRModel, attach
from cowclip_merlin.models.growing import growing_schema, growing_table

MODELS: Mapping[str, Callable[..., CTRModel]] = {
    name: getattr(importlib.import_module(f"{__name__}.{name}"), name) for name in choices.MODELS
}
"""Builders by name. As an attribute of this package, each hides the module of the same name."""

globals().update(MODELS)

__all__ = [
    "MODELS",
    "Architecture",
    "CTRModel",
    "Columns",
    "attach",
    "growing_schema",
    "growing_table",
    "logits",
    *MODELS,
]
