"""The four architectures of the paper, built on Merlin models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from cowclip_merlin.models.base import Architecture, logits
from cowclip_merlin.models.columns import Columns
from cowclip_merlin.models.ctr_model import CTRModel, attach
from cowclip_merlin.models.dcn import dcn
from cowclip_merlin.models.dcnv2 import dcnv2
from cowclip_merlin.models.deepfm import deepfm
from cowclip_merlin.models.wide_and_deep import wide_and_deep

MODELS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {"wide_and_deep": wide_and_deep, "deepfm": deepfm, "dcn": dcn, "dcnv2": dcnv2}
)
"""Builders by name."""

__all__ = [
    "MODELS",
    "Architecture",
    "CTRModel",
    "Columns",
    "attach",
    "dcn",
    "dcnv2",
    "deepfm",
    "logits",
    "wide_and_deep",
]
