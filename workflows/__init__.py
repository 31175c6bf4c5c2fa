"""Raw click logs to ids, counts and parquet, with NVTabular."""

from __future__ import annotations

from cowclip_merlin.workflows.counts import id_to_value, read_counts, value_to_id
from cowclip_merlin.workflows.folder import PreparedData
from cowclip_merlin.workflows.graph import Recipe, avazu, criteo, table
from cowclip_merlin.workflows.prepare import prepare
from cowclip_merlin.workflows.settings import PrepareSettings

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
