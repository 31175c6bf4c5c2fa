"""Prepare raw click logs with NVTabular: ids, frequency counts and parquet files."""

from __future__ import annotations

from cowclip_merlin.workflows.guess import guess_columns
from cowclip_merlin.workflows.nvtabular_graph import Recipe, avazu, criteo, table
from cowclip_merlin.workflows.prepare import prepare
from cowclip_merlin.workflows.prepare_settings import PrepareSettings
from cowclip_merlin.workflows.prepared.counts import id_to_value, read_counts, value_to_id
from cowclip_merlin.workflows.prepared.folder import PreparedData
from cowclip_merlin.workflows.raw.log_format import LogFormat
from cowclip_merlin.workflows.read_log import read_log

__all__ = [
    "LogFormat",
    "PrepareSettings",
    "PreparedData",
    "Recipe",
    "avazu",
    "criteo",
    "guess_columns",
    "id_to_value",
    "prepare",
    "read_counts",
    "read_log",
    "table",
    "value_to_id",
]
