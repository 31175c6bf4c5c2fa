"""Events with the values that a log or a program gives, before they become ids and numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cowclip_merlin.addresses import FilePath, expand
from cowclip_merlin.online.events.event_log import BLOCK_BYTES, read_rows
from cowclip_merlin.online.events.events import labels_of
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.events.times import parse_formatted_times, parse_times
from cowclip_merlin.workflows.raw.parsed_rows import Quarantine

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, kw_only=True)
class RawEvents:
    """Events in their order.

    Attributes:
        columns: column -> one JSON value for each event: text, a number, None, or a list. It
            has the inputs, key and weight if there are such, and the time as the log gives it.
        labels: as of `Events`: int8 [n], or float32 [n, T].
        times: seconds since 1970, float64 [n]; never smaller than the one before.
    """

    columns: Mapping[str, Sequence[object]]
    labels: npt.NDArray[np.int8] | npt.NDArray[np.float32]
    times: npt.NDArray[np.float64]

    def __len__(self) -> int:
        """Number of events."""
        return len(self.labels)

    def __getitem__(self, which: slice) -> RawEvents:
        """The events of a slice."""
        columns = {name: values[which] for name, values in self.columns.items()}
        return RawEvents(columns=columns, labels=self.labels[which], times=self.times[which])


class RawLog:
    """The events of some files as text, in pieces; each iteration reads the files once.

    A row with a wrong number of columns, a wrong label or vector is counted and left out. All
    other values stay as they are: who reads the events finds what is wrong with them.

    Args:
        files: plain or compressed text, or parquet, sorted by time; also patterns, and addresses
            such as s3://.
        features: their columns.
        max_bad_fraction: share of damaged rows above which reading stops.
        block_bytes: bytes of text that are read at a time.

    Raises:
        InputError: `max_bad_fraction` is out of range.

    Attributes:
        rows: rows read so far, header lines aside.
        damaged: how many rows were left out, and the first of them.
    """

    def __init__(
        self,
        files: Sequence[str | FilePath],
        features: LogFeatures,
        *,
        max_bad_fraction: float = 0.001,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self.files, self.features = expand(files), features
        self._max_bad_fraction, self._block_bytes = max_bad_fraction, block_bytes
        self._restart()

    def _restart(self) -> None:
        self.rows, self._newest = 0, 0.0
        self.damaged = Quarantine(None, max_bad_fraction=self._max_bad_fraction)

    def __iter__(self) -> Iterator[RawEvents]:
        """Pieces of the log, none of them empty.

        Raises:
            InputError: a file is missing, empty, damaged or of other columns, or has too many
                damaged rows.
        """
        self._restart()
        for file in self.files:
            for parsed in read_rows(file, self.features, self._block_bytes):
                self.damaged.add(parsed.bad)
                self.rows += parsed.lines
                self.damaged.check(file, self.rows)
                if parsed.table.num_rows:
                    yield self._events(parsed.table)
            self.damaged.check(file, self.rows, at_end=True)

    def _events(self, table: pa.Table) -> RawEvents:
        key = [self.features.key] if self.features.key else []
        names = dict.fromkeys([*key, *self.features.beside, *self.features.inputs])
        times = _times(table[self.features.time].combine_chunks(), self.features.time_format)
        # A time that cannot be read, or that goes back, counts as the one before it.
        times = np.maximum.accumulate(np.where(np.isnan(times), 0, times).clip(self._newest))
        self._newest = float(times[-1])
        return RawEvents(
            columns={name: table[name].to_pylist() for name in names},
            labels=labels_of(table, self.features),
            times=times,
        )


def _times(text: pa.Array, time_format: str | None) -> npt.NDArray[np.float64]:
    return parse_formatted_times(text, time_format) if time_format else parse_times(text)
