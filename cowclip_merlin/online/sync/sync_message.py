"""Messages of the log that servers follow: absolute values, in order, complete in themselves.

A message is the length of its header as a little-endian 32-bit number, the header as JSON, and
then its arrays as little-endian bytes. Applying a message twice changes nothing the second time.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from cowclip_merlin.errors import MALFORMED, InputError
from cowclip_merlin.tables.expiry import Dropped
from cowclip_merlin.tables.serving_table import Changes
from cowclip_merlin.types import Array, Json, JsonObject

GENERATION = "generation"
"""A trainer has started, or started again: `info` has `run` and `snapshot`, from which a server
has to load the model before it applies what follows, and `columns`, which the model reads."""
GONE = "gone"
"""Ids that have lost their rows: `fields` int64 [n], `ids` int64 [n]; the tables are empty."""
ROWS = "rows"
"""Rows that changed: `fields` int64 [n], `ids` int64 [n], `table0` float32 [n, d], ... The first
`info["absent"]` of them are the rows of the ids that have no row."""
DENSE = "dense"
"""All dense weights: `dense0`, ... in the model's order."""
SYNCED = "synced"
"""The end of a sync: all changes up to here are those of one moment. `info` says which."""
SNAPSHOT = "snapshot"
"""A snapshot was written: `info` is as of `GENERATION`. It holds all messages before this."""
KINDS = (GENERATION, GONE, ROWS, DENSE, SYNCED, SNAPSHOT)

MOST_ROWS = 4096
"""Rows in a message at most."""

_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, kw_only=True)
class SyncMessage:
    """One message.

    Attributes:
        kind: one of `KINDS`.
        generation: counts the starts of the trainer, from 1.
        seq: number of the message in its generation, from 0, without gaps.
        info: JSON.
        arrays: by name.
    """

    kind: str
    generation: int
    seq: int
    info: Mapping[str, Json] = field(default_factory=dict)
    arrays: Mapping[str, Array] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the message as bytes."""
        arrays = {k: _little_endian(x) for k, x in self.arrays.items()}
        header = {
            "kind": self.kind,
            "generation": self.generation,
            "seq": self.seq,
            "info": self.info,
            "arrays": [[name, x.dtype.str, list(x.shape)] for name, x in arrays.items()],
        }
        text = json.dumps(header).encode()
        return b"".join([_LENGTH.pack(len(text)), text, *(x.tobytes() for x in arrays.values())])

    @classmethod
    def decode(cls, data: bytes) -> SyncMessage:
        """Read a message; its arrays are read-only views.

        Raises:
            InputError: these bytes are not a message.

        >>> message = SyncMessage(kind=GONE, generation=1, seq=7, arrays={"ids": np.array([3])})
        >>> SyncMessage.decode(message.encode()).arrays["ids"].tolist()
        [3]
        """
        try:
            place = _LENGTH.size
            (length,) = _LENGTH.unpack_from(data)
            header = json.loads(data[place : place + length])
            place, arrays = place + length, {}
            for name, dtype, shape in header.pop("arrays"):
                count = int(np.prod(shape, dtype=np.int64))
                arrays[name] = np.frombuffer(data, dtype, count, place).reshape(shape)
                place += arrays[name].nbytes
            message = cls(**header, arrays=arrays)
            numbers = (message.generation, message.seq)
            whole = all(type(x) is int and x >= 0 for x in numbers) and type(message.info) is dict
            if place != len(data) or message.kind not in KINDS or not whole:
                raise ValueError(f"kind {message.kind!r}, {len(data)} bytes")
        except (struct.error, *MALFORMED) as error:
            raise InputError(f"not a message of a trainer ({error!s:.60}); check `from`") from None
        return message


class Part(NamedTuple):
    """What a message of changes holds: its kind, `info` and arrays."""

    kind: str
    info: JsonObject
    arrays: dict[str, Array]


def split_changes(
    changes: Changes, values: Sequence[Array], num_fields: int, *, most: int = MOST_ROWS
) -> Iterator[Part]:
    """Yield the parts to send for some changes, in the order in which to apply them.

    Args:
        changes: of a growing table.
        values: the changed rows of each embedding table, float32 [n, d].
        num_fields: F; the rows below it are those of the ids that have no row.
        most: rows or ids in a message.
    """
    gone = changes.gone
    for first in range(0, len(gone.ids), most):
        part = slice(first, first + most)
        none = {f"table{i}": x[:0] for i, x in enumerate(values)}
        yield Part(GONE, {}, {"fields": gone.fields[part], "ids": gone.ids[part]} | none)
    for first in range(0, len(changes.rows), most):
        part = slice(first, first + most)
        absent = int(np.count_nonzero(changes.rows[part] < num_fields))
        tables = {f"table{i}": x[part] for i, x in enumerate(values)}
        arrays = {"fields": changes.fields[part], "ids": changes.ids[part]} | tables
        yield Part(ROWS, {"absent": absent}, arrays)


def changes_of(message: SyncMessage) -> tuple[Changes, list[Array]]:
    """Return what `ServingTable.apply` takes, of a message of `GONE` or `ROWS`."""
    arrays, none = dict(message.arrays), np.empty(0, np.int64)
    fields, ids = arrays.pop("fields"), arrays.pop("ids")
    values = [arrays[f"table{i}"] for i in range(len(arrays))]
    if message.kind == GONE:
        return Changes(np.empty(0, np.int32), none, none, Dropped(fields, ids)), values
    # The trainer's row numbers mean nothing here, but those of absent ids are their fields.
    rows, absent = np.full(len(fields), np.iinfo(np.int32).max, np.int32), message.info["absent"]
    rows[:absent] = fields[:absent]
    return Changes(rows, fields, ids, Dropped(none, none)), values


def _little_endian(x: Array) -> Array:
    x = np.ascontiguousarray(x)
    return x.astype(x.dtype.newbyteorder("<"), copy=False)
