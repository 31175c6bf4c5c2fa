"""A log of events in files: read in time order in bounded memory, encoded or as it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cowclip_merlin.addresses import FilePath, expand
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.events import Damage, Events, encode_log, labels_of
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.events.values import (
    format_time,
    parse_formatted_times,
    parse_times,
)
from cowclip_merlin.workflows.raw.file_formats import JSON_LINES, format_of
from cowclip_merlin.workflows.raw.parsed_rows import BadLine, ParsedRows, Quarantine
from cowclip_merlin.workflows.raw.readers import (
    check_columns,
    open_parquet,
    read_parquet_rows,
    read_text_rows,
)

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_BYTES = 1 << 22


class _Files(ABC):
    """Some files of a log, read in pieces; each iteration begins anew."""

    def __init__(
        self,
        files: Sequence[str | FilePath],
        features: LogFeatures,
        *,
        max_bad_fraction: float = 0.001,
        quarantine: Path | None = None,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self.files, self.features = expand(files), features
        self.max_bad_fraction, self.quarantine = max_bad_fraction, quarantine
        self.block_bytes = block_bytes
        if not self.files:
            raise InputError("files is empty; give at least one file")
        self._restart()

    def _restart(self, *, written: int = 0) -> None:
        self.rows = 0
        self.damaged = Quarantine(
            self.quarantine, max_bad_fraction=self.max_bad_fraction, written=written
        )

    def __iter__(self) -> Iterator[Any]:
        """Yield the pieces that are not empty."""
        self._restart(written=self.damaged.written)
        for file in self.files:
            before = self.rows
            for parsed in read_rows(file, self.features, self.block_bytes):
                piece = self._piece(parsed, file, self.rows - before)
                self.rows += parsed.lines
                self.damaged.check(file, self.rows)
                if len(piece):
                    yield piece
            self.damaged.check(file, self.rows, at_end=True)

    @abstractmethod
    def _piece(self, parsed: ParsedRows, file: FilePath, before: int) -> Sized:
        """Return what is read of a piece, of which so many rows of the file are before it."""


class EventLog(_Files):
    """The events of some files, in pieces; iterating again reads the files again.

    Damaged rows are counted and set aside with their reason. Iterating again counts them anew, and
    writes none of them twice. The others must be sorted by time, over all files.

    Args:
        files: plain or compressed text, or parquet, sorted by time; also patterns, and addresses
            such as s3://.
        features: their columns.
        max_bad_fraction: share of damaged rows above which reading stops.
        quarantine: file to which the damaged rows are appended; None only counts them.
        block_bytes: bytes of text that are read at a time.

    Raises:
        InputError: there are no files, or `max_bad_fraction` is out of range.

    Attributes:
        rows: rows read so far, header lines aside.
        events: those that are whole.
        damaged: how many were set aside, and the first of them.
    """

    def _restart(self, *, written: int = 0) -> None:
        super()._restart(written=written)
        self.events = 0
        self._last = (0, "")  # time and line of the last event

    def __iter__(self) -> Iterator[Events]:
        """Pieces of the log, none of them empty.

        Raises:
            InputError: a file is missing, empty, damaged or of other columns; times go backwards;
                too many rows are damaged, or all.
        """
        yield from super().__iter__()
        if self.events + self.damaged.count != self.rows:
            raise RuntimeError(
                f"{self.rows} rows in, but {self.events} events and {self.damaged.count} set aside"
            )
        if not self.events:
            raise InputError(f"{self.files[0]}: no events; give a log with at least one row")

    def _piece(self, parsed: ParsedRows, file: FilePath, before: int) -> Events:
        """The good events of one piece; the others are set aside.

        Args:
            parsed: the piece.
            file: it comes from.
            before: rows of the file before it.
        """
        damage = Damage()
        events = encode_log(parsed.table, self.features, damage)
        good = damage.good(len(events))
        header = file.suffix != ".parquet" and not self.features.columns
        lines = parsed.positions.astype(np.int64) + before + 1 + header
        texts = _texts(parsed, list(damage.reasons))
        bad = [
            BadLine(str(file), int(lines[i]), reason, text)
            for (i, reason), text in zip(damage.reasons.items(), texts)
        ]
        self.damaged.add(sorted([*parsed.bad, *bad], key=lambda line: line.line))
        events, lines = events.filter(good), lines[good]
        self._check_order(events, lines, file)
        self.events += len(events)
        return events

    def _check_order(self, events: Events, lines: npt.NDArray[np.int64], file: FilePath) -> None:
        """Refuse times that go backwards."""
        if not len(events):
            return
        previous = np.concatenate(([self._last[0]], events.times[:-1]))
        back = np.flatnonzero(events.times < previous)
        if back.size:
            i = int(back[0])
            earlier = f"line {lines[i - 1]}" if i else self._last[1]
            name = self.features.time
            raise InputError(
                f"{file}: line {lines[i]}: {name} is {format_time(int(events.times[i]))}, before "
                f"{format_time(int(previous[i]))} of {earlier}; sort the log by {name}"
            )
        self._last = (int(events.times[-1]), f"{file}, line {lines[-1]}")


def read_rows(file: FilePath, features: LogFeatures, block_bytes: int) -> Iterator[ParsedRows]:
    """The rows of one file as text, in pieces.

    Args:
        file: plain or compressed text, or parquet.
        features: its columns.
        block_bytes: bytes of text that are read at a time.

    Raises:
        InputError: the file is missing, empty, damaged or of other columns.
    """
    log_format = features.log_format(file)
    if format_of(file) == JSON_LINES:
        raise InputError(f"{file}: is JSON lines, which are no log of events; give CSV or parquet")
    if file.suffix != ".parquet":
        return read_text_rows(file, log_format, block_bytes)
    _check_types(file, features)
    numbers = set(log_format.categorical) - set(features.identifiers)
    bytes_per_row = 256 + 16 * sum(log_format.vectors.values())
    rows = max(1, block_bytes // bytes_per_row)
    return read_parquet_rows(file, log_format, rows, printed=numbers)


def _texts(parsed: ParsedRows, rows: list[int]) -> list[bytes]:
    """The lines of some rows; empty for parquet."""
    if not rows or not parsed.text:
        return [b""] * len(rows)
    lines = parsed.text.split(b"\n")
    return [lines[int(i)] for i in parsed.positions[rows]]


def _check_types(file: FilePath, features: LogFeatures) -> None:
    """Refuse a parquet file whose columns of ids are neither text nor numbers.

    The text of a date is not unique, so a request could give another id. Fractional numbers are
    refused when they are read.
    """
    import pyarrow.types as types

    schema = open_parquet(file).schema_arrow
    check_columns(schema.names, features.identifiers, file)
    for name in features.identifiers:
        kind = schema.field(name).type
        lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
        is_list = any(test(kind) for test in lists)
        if is_list and name not in features.lists:
            raise InputError(
                f"{file}: column {name!r} is {kind}, several values per row; give it a separator "
                "in the features file"
            )
        of_value = kind.value_type if is_list else kind
        of_value = of_value.value_type if types.is_dictionary(of_value) else of_value
        shown = kind if is_list else of_value
        usable = (types.is_string, types.is_large_string, types.is_integer, types.is_boolean)
        usable += (types.is_floating, types.is_decimal)
        if not any(test(of_value) for test in (*usable, types.is_null)):
            raise InputError(
                f"{file}: column {name!r} is {shown}; convert it to text or whole numbers"
            )


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


class RawLog(_Files):
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

    def _restart(self, *, written: int = 0) -> None:
        super()._restart(written=written)
        self._newest = 0.0

    def _piece(self, parsed: ParsedRows, file: FilePath, before: int) -> Sized:
        self.damaged.add(parsed.bad)
        table = parsed.table
        if not table.num_rows:
            return ()
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
