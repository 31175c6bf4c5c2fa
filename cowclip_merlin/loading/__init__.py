"""A prepared data set on the training device: read, kept there or streamed to it, in order."""

from __future__ import annotations

from cowclip_merlin.loading.cache import open_columns
from cowclip_merlin.loading.columns import ColumnArrays, read_columns
from cowclip_merlin.loading.device_data import DeviceData
from cowclip_merlin.loading.holdout import split_off, validation_rows
from cowclip_merlin.loading.placement import (
    LoadedData,
    bytes_of,
    load_split_to_device,
    load_to_device,
    open_train,
)
from cowclip_merlin.loading.row_order import Data, batches, steps_per_epoch
from cowclip_merlin.loading.streamed_data import StreamedData

__all__ = [
    "ColumnArrays",
    "Data",
    "DeviceData",
    "LoadedData",
    "StreamedData",
    "batches",
    "bytes_of",
    "load_split_to_device",
    "load_to_device",
    "open_columns",
    "open_train",
    "read_columns",
    "split_off",
    "steps_per_epoch",
    "validation_rows",
]
