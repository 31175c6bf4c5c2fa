"""An event log, read in time order in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin.addresses import FilePath, expand
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.events import Damage, Events, encode_log
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.events.times import format_time
from cowclip_merlin.workflows.raw.file_formats import JSON_LINES, format_of
from cowclip_merlin.workflows.raw.parquet_rows import (
    check_columns,
    open_parquet,
    read_parquet_rows,
)
from cowclip_merlin.workflows.raw.parsed_rows import BadLine, ParsedRows, Quarantine
from cowclip_merlin.workflows.raw.text_rows import read_text_rows

if TYPE_CHECKING:
    import numpy.typing as npt

BLOCK_BYTES = 1 << 22


class EventLog:
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
        self._restart(written=0)

    def _restart(self, *, written: int) -> None:
        self.rows = self.events = 0
        self.damaged = Quarantine(
            self.quarantine, max_bad_fraction=self.max_bad_fraction, written=written
        )
        self._last = (0, "")  # time and line of the last event

    def __iter__(self) -> Iterator[Events]:
        """Pieces of the log, none of them empty.

        Raises:
            InputError: a file is missing, empty, damaged or of other columns; times go backwards;
                too many rows are damaged, or all.
        """
        self._restart(written=self.damaged.written)
        for file in self.files:
            before = self.rows
            for parsed in read_rows(file, self.features, self.block_bytes):
                events = self._encode(parsed, file, self.rows - before)
                self.rows += parsed.lines
                self.events += len(events)
                self.damaged.check(file, self.rows)
                if len(events):
                    yield events
            self.damaged.check(file, self.rows, at_end=True)
        if self.events + self.damaged.count != self.rows:
            raise RuntimeError(
                f"{self.rows} rows in, but {self.events} events and {self.damaged.count} set aside"
            )
        if not self.events:
            raise InputError(f"{self.files[0]}: no events; give a log with at least one row")

    def _encode(self, parsed: ParsedRows, file: FilePath, before: int) -> Events:
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
