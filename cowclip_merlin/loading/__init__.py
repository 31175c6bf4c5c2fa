"""Load prepared data: read columns, keep them on the device or stream them, batch by batch."""

from __future__ import annotations

from cowclip_merlin.batch import Batch, Ids
from cowclip_merlin.loading.cache import open_columns
from cowclip_merlin.loading.class_weights import added_log_odds, class_weights_of, total_weight
from cowclip_merlin.loading.column_arrays import ColumnArrays
from cowclip_merlin.loading.columns import read_columns
from cowclip_merlin.loading.device_data import DeviceData
from cowclip_merlin.loading.placement import (
    LoadedData,
    load_split_to_device,
    load_to_device,
    megabytes_to_bytes,
    open_all_and_test,
    open_train_and,
    open_train_and_validation,
    open_train_columns,
    usual_generator,
)
from cowclip_merlin.loading.row_order import (
    Data,
    batches,
    steps_per_epoch,
    train_validation_split,
    validation_rows,
)
from cowclip_merlin.loading.streamed_data import StreamedData

__all__ = [
    "Batch",
    "ColumnArrays",
    "Data",
    "DeviceData",
    "Ids",
    "LoadedData",
    "StreamedData",
    "added_log_odds",
    "batches",
    "class_weights_of",
    "load_split_to_device",
    "load_to_device",
    "megabytes_to_bytes",
    "open_all_and_test",
    "open_columns",
    "open_train_and",
    "open_train_and_validation",
    "open_train_columns",
    "read_columns",
    "steps_per_epoch",
    "total_weight",
    "train_validation_split",
    "usual_generator",
    "validation_rows",
]
