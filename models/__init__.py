"""The four architectures of the paper and DIN, built on Merlin models."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cowclip_merlin.models.architecture import Architecture
from cowclip_merlin.models.base import logits
from cowclip_merlin.models.columns import Columns
from cowclip_merlin.models.ctr_model import CTRModel, attach
from cowclip_merlin.models.dcn import dcn
from cowclip_merlin.models.dcnv2 import dcnv2
from cowclip_merlin.models.deepfm import deepfm
from cowclip_merlin.models.din import din
from cowclip_merlin.models.growing import growing_schema, growing_table
from cowclip_merlin.models.wide_and_deep import wide_and_deep

MODELS: Mapping[str, Callable[..., CTRModel]] = {
    "wide_and_deep": wide_and_deep,
    "deepfm": deepfm,
    "dcn": dcn,
    "dcnv2": dcnv2,
    "din": din,
}
"""Builders by name. As an attribute of this package, each hides the module of the same name."""

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
