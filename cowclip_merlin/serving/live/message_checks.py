"""Refuse messages that are not of the model that is served, before they change anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.sync.sync_message import DENSE, GONE, ROWS

if TYPE_CHECKING:
    import numpy.typing as npt

    from cowclip_merlin.online.sync.sync_message import SyncMessage
    from cowclip_merlin.tables.serving_table import ServingTable


def check_message(message: SyncMessage, table: ServingTable) -> None:
    """Check the arrays of a message.

    Compiled loops use fields as places in arrays, so a wrong one would damage memory.

    Raises:
        InputError: the arrays are not those of this table, or not dense weights.
    """
    if message.kind in (GONE, ROWS):
        _check_rows(message, table)
    if message.kind == DENSE:
        wanted = {f"dense{i}" for i in range(len(message.arrays))}
        if set(message.arrays) != wanted or any(
            x.dtype.kind != "f" for x in message.arrays.values()
        ):
            _refuse(message, f"has dense weights {', '.join(message.arrays):.60}")


def _check_rows(message: SyncMessage, table: ServingTable) -> None:
    wanted = {"fields": (np.int64, ()), "ids": (np.int64, ())}
    wanted |= {f"table{i}": (np.float32, x.shape[1:]) for i, x in enumerate(table.tables)}
    found = {name: (x.dtype, x.shape[1:]) for name, x in message.arrays.items()}
    if found != wanted:
        _refuse(message, f"has {_text(found)} instead of {_text(wanted)}")
    n = {len(x) for name, x in message.arrays.items() if message.kind == ROWS or name in _PAIR}
    fields, absent = message.arrays["fields"], message.info.get("absent", 0)
    if len(n) > 1:
        _refuse(message, "has columns of different lengths")
    if len(fields) and not 0 <= fields.min() <= fields.max() < table.num_fields:
        _refuse(message, f"names fields beyond the {table.num_fields} of the model")
    if type(absent) is not int or not 0 <= absent <= len(fields):
        _refuse(message, f"counts {absent!r:.20} rows of absent ids")


_PAIR = ("fields", "ids")


def _text(arrays: dict[str, tuple[npt.DTypeLike, tuple[int, ...]]]) -> str:
    return ", ".join(f"{k} {np.dtype(dtype)}{list(shape)}" for k, (dtype, shape) in arrays.items())


def _refuse(message: SyncMessage, what: str) -> None:
    raise InputError(
        f"message {message.seq} of generation {message.generation} {what}; it is of another model"
    )
