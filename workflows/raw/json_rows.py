"""Read the rows of a log of JSON lines, one object in each line, and check them.

A missing key is a missing value. Values become texts and numbers as those of parquet do. Whether
a line is bad depends on this line alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from cowclip_merlin.addresses import FilePath
from cowclip_merlin.errors import InputError
from cowclip_merlin.types import Json, JsonObject
from cowclip_merlin.workflows.raw.file_formats import Told
from cowclip_merlin.workflows.raw.log_format import LogFormat
from cowclip_merlin.workflows.raw.parsed_rows import BadLine, ParsedRows, checked, damage_of
from cowclip_merlin.workflows.raw.text_lines import Block, read_blocks
from cowclip_merlin.workflows.raw.values.value_text import Damage

if TYPE_CHECKING:
    import pyarrow as pa


def read_json_rows(
    file: FilePath,
    log_format: LogFormat,
    block_bytes: int,
    *,
    keep: Sequence[str] = (),
    told: Sequence[Told] = (),
) -> Iterator[ParsedRows]:
    """Read and parse the file block by block."""
    reader = _Reader(file, log_format, keep)
    for block in read_blocks(file, block_bytes, told):
        yield reader.parse(block)


def first_values(file: FilePath, names: Sequence[str], rows: int) -> dict[str, list[Json]]:
    """Return the values of these keys in the first good lines, at most `rows`."""
    parsed = first_objects(file, rows, 1 << 22)
    return {name: [row.get(name) for row in parsed] for name in names}


def first_objects(file: FilePath, rows: int, size: int) -> list[JsonObject]:
    """Return the first good lines, at most `rows` of some `size` bytes."""
    lines = next(read_blocks(file, size)).text.split(b"\n")[:-1][:rows]
    return [row for row in map(_object_or_none, lines) if row is not None]


class _Reader:
    """Parses blocks of one file; the first one has to have all columns."""

    def __init__(self, file: FilePath, log_format: LogFormat, keep: Sequence[str]) -> None:
        import pyarrow as pa

        self._file, self._columns, self._keep = file, log_format.sources, keep
        self._schema = pa.schema([(each.name, each.json_type) for each in self._columns])
        self._checked = False

    def parse(self, block: Block) -> ParsedRows:
        """Parse whole lines."""
        import pyarrow as pa

        lines = block.text.split(b"\n")[:-1]
        rows, places, bad = [], [], []
        columns = [[] for _ in self._columns]
        for place, line in enumerate(lines):
            try:
                row = _object(line)
                values = [each.of_json(row.get(each.name)) for each in self._columns]
            except Damage as error:
                bad.append(BadLine(str(self._file), block.first_line + place, str(error), line))
                continue
            rows.append(row)
            places.append(place)
            for column, value in zip(columns, values):
                column.append(value)
        self._check_keys(rows)
        arrays = [pa.array(x, each.type) for x, each in zip(columns, self._schema)]
        given = pa.table(arrays, self._schema)
        table, good = checked(given, self._columns, self._file)
        for i in np.flatnonzero(~good):
            line, reason = places[i], damage_of(self._columns, rows[i])
            bad.append(BadLine(str(self._file), block.first_line + line, reason, lines[line]))
        return ParsedRows(
            table=table.filter(pa.array(good)),
            positions=np.array(places, np.uint64)[good],
            lines=len(lines),
            bad=sorted(bad, key=lambda each: each.line),
            text=block.text,
            kept=_kept([row for row, is_good in zip(rows, good) if is_good], self._keep)
            if self._keep
            else None,
        )

    def _check_keys(self, rows: Sequence[JsonObject]) -> None:
        """Refuse a column that no row of the first block has: its name may be wrong."""
        if self._checked or not rows:
            return
        self._checked = True
        found = dict.fromkeys(key for row in rows for key in row)
        for name in (*self._schema.names, *self._keep):
            if name not in found:
                keys = ", ".join(repr(key[:40]) for key in list(found)[:8])
                raise InputError(
                    f"{self._file}: no key {name!r} in the first {len(rows)} rows ({keys}); check "
                    "the names, or write null in the first row if it is always missing"
                )


def _object(line: bytes) -> JsonObject:
    """Parse a line."""
    try:
        row = _DECODER.decode(line.decode("utf-8").strip())
    except UnicodeDecodeError:
        raise Damage("bytes that are not UTF-8 text") from None
    except (RecursionError, ValueError) as error:
        raise Damage(f"no JSON ({str(error).partition(';')[0]})") from None
    if not isinstance(row, dict):
        raise Damage("no JSON object; give one in each line")
    return row


def _object_or_none(line: bytes) -> JsonObject | None:
    try:
        return _object(line)
    except Damage:
        return None


def _without_repeats(pairs: list[tuple[str, Json]]) -> JsonObject:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        raise Damage(f"the key {next(x for x in names if names.count(x) > 1)!r} occurs twice")
    return row


def _refuse_constant(word: str) -> NoReturn:
    raise Damage(f"{word} is no JSON; write null for a missing value")


_DECODER = json.JSONDecoder(object_pairs_hook=_without_repeats, parse_constant=_refuse_constant)


def _kept(rows: Sequence[JsonObject], names: Sequence[str]) -> pa.Table:
    import pyarrow as pa

    def text(value: Json) -> str | None:
        return value if value is None or isinstance(value, str) else json.dumps(value)

    return pa.table(
        {name: pa.array([text(row.get(name)) for row in rows], pa.string()) for name in names}
    )
