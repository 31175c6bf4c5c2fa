"""A prepared data set on the training device: read, kept there or streamed to it, in order."""

from __future__ import annotations

from cowclip_merlin.loading.cache import open_columns
from cowclip_merlin.loading.columns import Columns, read_columns
from cowclip_merlin.loading.device import DeviceData
from cowclip_merlin.loading.order import Data, batches, steps_per_epoch
from cowclip_merlin.loading.place import Placed, bytes_of, open_train, place, place_split
from cowclip_merlin.loading.stream import StreamedData
from cowclip_merlin.loading.validation import split_off, validation_rows

__all__ = [
    "Columns",
    "Data",
    "DeviceData",
    "Placed",
    "StreamedData",
    "batches",
    "bytes_of",
    "open_columns",
    "open_train",
    "place",
    "place_split",
    "read_columns",
    "split_off",
    "steps_per_epoch",
    "validation_rows",
]
