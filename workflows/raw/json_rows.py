"""Read the rows of a log of JSON lines, one object in each line, and check them.

A missing key is a missing value. Values become texts and numbers as those of parquet do. Whether
a line is bad depends on this line alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from cowclip_merlin.addresses import FilePath
from cowclip_merlin.errors import InputError
from cowclip_merlin.types import Json, JsonObject
from cowclip_merlin.workflows.raw.log_format import LogFormat
from cowclip_merlin.workflows.raw.parquet_rows import checked_batch
from cowclip_merlin.workflows.raw.parsed_rows import BadLine, ParsedRows
from cowclip_merlin.workflows.raw.text_lines import Block, read_blocks
from cowclip_merlin.workflows.raw.values.multi_values import float_of, vector_damage, vector_values
from cowclip_merlin.workflows.raw.values.value_text import EXACT

if TYPE_CHECKING:
    import pyarrow as pa


class _Damage(Exception):
    """What is wrong with a line."""


def read_json_rows(
    file: FilePath, log_format: LogFormat, block_bytes: int, *, keep: Sequence[str] = ()
) -> Iterator[ParsedRows]:
    """Read and parse the file block by block.

    Args:
        file: plain or compressed text, with one JSON object in each line.
        log_format: columns of the log.
        block_bytes: bytes of text per block.
        keep: keys to return as text, as `ParsedRows.kept`; other values than text as JSON.

    Raises:
        InputError: if the file is missing, empty or damaged, or the first block lacks a column.
    """
    reader = _Reader(file, log_format, keep)
    for block in read_blocks(file, block_bytes):
        yield reader.parse(block)


def first_values(file: FilePath, names: Sequence[str], rows: int) -> dict[str, list[Json]]:
    """Return the values of these keys in the first good lines, at most `rows`.

    Raises:
        InputError: if the file is missing, empty or damaged.
    """
    lines = next(read_blocks(file, 1 << 22)).text.split(b"\n")[:-1][:rows]
    parsed = [row for row in map(_object_or_none, lines) if row is not None]
    return {name: [row.get(name) for row in parsed] for name in names}


class _Reader:
    """Parses blocks of one file; the first one has to have all columns."""

    def __init__(self, file: FilePath, log_format: LogFormat, keep: Sequence[str]) -> None:
        import pyarrow as pa

        self._file, self._format, self._keep = file, log_format, keep
        self._converters = _converters(log_format)
        self._schema = pa.schema([(name, kind) for name, kind, _ in self._converters])
        self._checked = False

    def parse(self, block: Block) -> ParsedRows:
        """Parse whole lines."""
        import pyarrow as pa

        lines = block.text.split(b"\n")[:-1]
        rows, places, bad = [], [], []
        columns = [[] for _ in self._converters]
        for place, line in enumerate(lines):
            try:
                row = _object(line)
                values = [convert(row.get(name)) for name, _, convert in self._converters]
            except _Damage as error:
                bad.append(BadLine(str(self._file), block.first_line + place, str(error), line))
                continue
            rows.append(row)
            places.append(place)
            for column, value in zip(columns, values):
                column.append(value)
        self._check_keys(rows)
        arrays = [pa.array(x, each.type) for x, each in zip(columns, self._schema)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        found = checked_batch(batch, self._format, self._file, 0)
        for each in found.bad:
            place = places[each.line - 1]
            bad.append(replace(each, line=block.first_line + place, text=lines[place]))
        good = found.positions.astype(np.int64)
        return ParsedRows(
            table=found.table,
            positions=np.array(places, np.uint64)[good],
            lines=len(lines),
            bad=sorted(bad, key=lambda each: each.line),
            text=block.text,
            kept=_kept([rows[i] for i in good], self._keep) if self._keep else None,
        )

    def _check_keys(self, rows: Sequence[JsonObject]) -> None:
        """Refuse a column that no row of the first block has: its name may be wrong.

        Raises:
            InputError: if there is one.
        """
        if self._checked or not rows:
            return
        self._checked = True
        found = dict.fromkeys(key for row in rows for key in row)
        for name in (*self._format.columns, *self._keep):
            if name not in found:
                keys = ", ".join(repr(key[:40]) for key in list(found)[:8])
                raise InputError(
                    f"{self._file}: no key {name!r} in the first {len(rows)} rows ({keys}); check "
                    "the names, or write null in the first row if it is always missing"
                )


def _converters(log_format: LogFormat) -> list[tuple[str, pa.DataType, Callable[[Json], Json]]]:
    """Return name, Arrow type and conversion of each column."""
    import pyarrow as pa

    texts, numbers = pa.list_(pa.string()), pa.list_(pa.float64())
    known = {name: (pa.float64(), partial(_number, name)) for name in log_format.columns}
    known |= {name: (pa.string(), partial(_text, name)) for name in log_format.categorical}
    for name, separator in log_format.multi.items():
        known[name] = texts, partial(_texts, name, separator)
    for name, length in log_format.vectors.items():
        known[name] = numbers, partial(_vector, name, log_format.vector_separator, length)
    for name, regression in log_format.targets:
        if not regression:
            known[name] = pa.string(), _label
    return [(name, *known[name]) for name in log_format.columns]


def _object(line: bytes) -> JsonObject:
    """Parse a line.

    Raises:
        _Damage: if it is no JSON object of UTF-8 text with different keys.
    """
    try:
        row = _DECODER.decode(line.decode("utf-8").strip())
    except UnicodeDecodeError:
        raise _Damage("bytes that are not UTF-8 text") from None
    except (RecursionError, ValueError) as error:
        raise _Damage(f"no JSON ({str(error).partition(';')[0]})") from None
    if not isinstance(row, dict):
        raise _Damage("no JSON object; give one in each line")
    return row


def _object_or_none(line: bytes) -> JsonObject | None:
    try:
        return _object(line)
    except _Damage:
        return None


def _without_repeats(pairs: list[tuple[str, Json]]) -> JsonObject:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        raise _Damage(f"the key {next(x for x in names if names.count(x) > 1)!r} occurs twice")
    return row


def _refuse_constant(word: str) -> NoReturn:
    raise _Damage(f"{word} is no JSON; write null for a missing value")


_DECODER = json.JSONDecoder(object_pairs_hook=_without_repeats, parse_constant=_refuse_constant)


def _text(name: str, value: Json) -> str | None:
    """Return the text of an id as `text_of_values` does."""
    if value is None:
        return None
    if isinstance(value, str):
        if not value.isascii():
            _check_text(name, value)
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if value != value // 1 or abs(value) >= EXACT:
            raise _Damage(
                f"{name} is {value}, whose text is not unique; give text or whole numbers"
            )
        return str(int(value))
    if isinstance(value, list):
        raise _Damage(f"{name} has a list of values; name it in `multi`, or give one value")
    raise _Damage(f"{name} is an object; give text or a number")


def _check_text(name: str, value: str) -> None:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:  # half of a pair of escapes
        raise _Damage(f"{name} has characters that are not UTF-8 text") from None


def _texts(name: str, separator: str, value: Json) -> list[str | None]:
    if value is None:
        return []
    if isinstance(value, list):
        return [_text(name, each) for each in value]
    if not isinstance(value, str):
        raise _Damage(f"{name} is {value!r:.60}; give a list, or text with {separator!r}")
    if value.startswith("[") and value.endswith("]"):
        raise _Damage(f"{name} is {value!r:.60}, the print of a list; give a list of JSON")
    return [_text(name, each) for each in value.split(separator)]


def _vector(name: str, separator: str, length: int, value: Json) -> list[float | None]:
    numbers = []
    for each in vector_values(value, separator):
        number = float_of(each) if isinstance(each, (str, bool)) else each
        if number is not None and (not isinstance(number, int | float) or number != number):
            raise _Damage(vector_damage(name, value, separator, length))
        numbers.append(None if number is None else _number(name, number))
    return numbers


def _number(name: str, value: Json) -> float | None:
    if value is None or value == "":
        return None
    number = float_of(value) if isinstance(value, str) else value
    if not isinstance(number, int | float) or number != number:
        raise _Damage(f"{name} is {value!r:.60}, not a number")
    try:
        return float(number)
    except OverflowError:
        raise _Damage(f"{name} is {str(value)[:60]}, not a finite number") from None


def _label(value: Json) -> str | None:
    """Return a label of 0 or 1 as text, which `checked_batch` reads."""
    return None if value is None or value == "" else str(value)


def _kept(rows: Sequence[JsonObject], names: Sequence[str]) -> pa.Table:
    import pyarrow as pa

    def text(value: Json) -> str | None:
        return value if value is None or isinstance(value, str) else json.dumps(value)

    return pa.table(
        {name: pa.array([text(row.get(name)) for row in rows], pa.string()) for name in names}
    )
