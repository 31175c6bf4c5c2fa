"""The four architectures of the paper and DIN, built on Merlin models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module

from cowclip_merlin import choices
from cowclip_merlin.models.architecture import Architecture
from cowclip_merlin.models.base import logits
from cowclip_merlin.models.columns import Columns
from cowclip_merlin.models.ctr_model import CTRModel, attach
from cowclip_merlin.models.growing import growing_schema, growing_table


class _Builders(Mapping[str, Callable[..., CTRModel]]):
    """Maps each name in `choices.MODELS` to its builder, and imports the builder's module."""

    def __getitem__(self, name: str) -> Callable[..., CTRModel]:
        if name not in choices.MODELS:
            raise KeyError(name)
        return getattr(import_module(f"cowclip_merlin.models.{name}"), name)

    def __iter__(self) -> Iterator[str]:
        return iter(choices.MODELS)

    def __len__(self) -> int:
        return len(choices.MODELS)


MODELS: Mapping[str, Callable[..., CTRModel]] = _Builders()
"""Builders by name."""

# As an attribute of this package, each builder hides the module of the same name.
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
    *choices.MODELS,
]
