"""Embedding tables: which rows belong to which field, and tables that grow."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from cowclip_merlin.tables.layout import FieldRules, TableLayout

if TYPE_CHECKING:
    from cowclip_merlin.tables.growing_table import GrowingTable

__all__ = ["FieldRules", "GrowingTable", "TableLayout"]


def __getattr__(name: str) -> type[GrowingTable]:
    if name == "GrowingTable":  # it imports numba, which the optimizer may not need
        return importlib.import_module("cowclip_merlin.tables.growing_table").GrowingTable
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
