"""Number the distinct texts of a log; together they may have more than 2 GiB."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from cowclip_merlin.types import Array, ArrowColumn
from cowclip_merlin.workflows.raw.values.value_text import in_chunks

if TYPE_CHECKING:
    import pyarrow as pa

_FIRST_SLOTS = 1 << 10


class TextTable(NamedTuple):
    """The texts in the order of their numbers, and the hash table.

    Attributes:
        slots: the hash table, uint64 [a power of two], with at least one empty slot.
        starts: where each text starts in `text`, and where the last one ends, int64 [capacity + 1].
        text: UTF-8, uint8 [bytes].
    """

    slots: Array
    starts: Array
    text: Array


class TextNumbers:
    """Distinct texts, numbered from 0 in the order in which they came.

    It needs some 30 bytes for each text besides its UTF-8, and makes no Python string. Threads may
    use it at the same time.

    >>> import pyarrow as pa
    >>> texts = TextNumbers()
    >>> texts.add(pa.array(["b", "a"])).tolist(), texts.find(pa.array(["c", "a"])).tolist()
    ([0, 1], [-1, 1])
    >>> texts.values().to_pylist()
    ['b', 'a']
    """

    def __init__(self) -> None:
        self._table = TextTable(
            slots=np.zeros(_FIRST_SLOTS, np.uint64),
            starts=np.zeros(1, np.int64),
            text=np.empty(0, np.uint8),
        )
        self._count = 0
        self._lock = Lock()

    def __len__(self) -> int:
        """Return the number of texts."""
        return self._count

    def add(self, values: ArrowColumn) -> npt.NDArray[np.int32]:
        """Return the number of each text, int32 [m]; new texts get the next numbers."""
        return self._numbers(values, add=True)

    def find(self, values: ArrowColumn) -> npt.NDArray[np.int32]:
        """Return the number of each text, int32 [m]; -1 for a text that never came."""
        return self._numbers(values, add=False)

    def values(self) -> pa.ChunkedArray:
        """Return the texts in the order of their numbers, in chunks of `string`."""
        import pyarrow as pa

        with self._lock:
            starts = self._table.starts[: self._count + 1].copy()
            text = self._table.text[: starts[-1]].copy()
        buffers = [None, pa.py_buffer(starts), pa.py_buffer(text)]
        found = pa.Array.from_buffers(pa.large_string(), len(starts) - 1, buffers)
        return in_chunks(found)

    def _numbers(self, values: ArrowColumn, *, add: bool) -> npt.NDArray[np.int32]:
        # Here, so that numba is imported on a thread while others read.
        from cowclip_merlin.kernels.loops.texts import hash_texts, number_texts

        found = [np.empty(0, np.int32)]
        for chunk in getattr(values, "chunks", [values]):
            if not len(chunk):
                continue
            _, starts, text = chunk.buffers()  # which share its memory
            starts = np.frombuffer(starts, np.int32)[chunk.offset :][: len(chunk) + 1]
            text = np.frombuffer(text, np.uint8) if text else np.empty(0, np.uint8)
            for each in (starts, text):
                each.flags.writeable = False  # always, or the loops would be compiled twice
            tags, numbers = np.empty(len(chunk), np.uint64), np.empty(len(chunk), np.int32)
            hash_texts(starts, text, tags)
            with self._lock:
                if add:
                    self._reserve(len(chunk), int(starts[-1]) - int(starts[0]))
                table = (*self._table, self._count)
                self._count = number_texts(*table, starts, text, tags, numbers, add)
            found.append(numbers)
        return np.concatenate(found)

    def _reserve(self, texts: int, size: int) -> None:
        """Make room for more texts of this size in bytes; at most 5 of 8 slots are used."""
        from cowclip_merlin.kernels.loops.texts import copy_slots

        slots, starts, text = self._table
        most, wide = self._count + texts, len(slots)
        while 8 * most > 5 * wide:
            wide *= 2
        if wide > len(slots):
            wider = np.zeros(wide, np.uint64)
            copy_slots(slots, wider)
            slots = wider
        starts = _grown(starts, self._count + 1, most + 1)
        used = int(starts[self._count])
        self._table = TextTable(slots, starts, _grown(text, used, used + size))


def _grown(x: npt.NDArray, used: int, size: int) -> npt.NDArray:
    """Return an array of at least this size with the first `used` numbers of `x`."""
    if size <= len(x):
        return x
    larger = np.empty(max(size, len(x) * 3 // 2), x.dtype)  # Linux gives memory when it is written
    larger[:used] = x[:used]
    return larger
