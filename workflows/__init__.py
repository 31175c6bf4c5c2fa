"""Prepare raw click logs with NVTabular: ids, frequency counts and parquet files."""

from __future__ import annotations

from cowclip_merlin.workflows.nvtabular_graph import Recipe, avazu, criteo, table
from cowclip_merlin.workflows.prepare import prepare
from cowclip_merlin.workflows.prepare_settings import PrepareSettings
from cowclip_merlin.workflows.prepared.counts import id_to_value, read_counts, value_to_id
from cowclip_merlin.workflows.prepared.folder import PreparedData

__all__ = [
    "PrepareSettings",
    "PreparedData",
    "Recipe",
    "avazu",
    "criteo",
    "id_to_value",
    "prepare",
    "read_counts",
    "table",
    "value_to_id",
]
