"""Read a text file in blocks of whole lines, and parse them: one pass finds all that is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cowclip_merlin.addresses import FilePath
from cowclip_merlin.errors import InputError
from cowclip_merlin.workflows.raw.file_formats import Told, open_text, read_bytes
from cowclip_merlin.workflows.raw.log_format import LogFormat
from cowclip_merlin.workflows.raw.parsed_rows import (
    NOT_READABLE,
    BadLine,
    ParsedRows,
    checked,
    damage_of,
)
from cowclip_merlin.workflows.raw.values.numbers import read_numbers

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import csv


BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BLANK = b"\r\n"
_LONGEST = 1 << 30  # bytes of a line: Arrow parses fewer than 2 GiB at a time
_TAIL = 1 << 12  # bytes at the end of a text to search for blank lines at a time


@dataclass(frozen=True)
class Block:
    """Whole lines of a file.

    Attributes:
        first_line: number of the first line, counted from 1.
        text: the lines.
    """

    first_line: int
    text: bytes

    @cached_property
    def lines(self) -> int:
        """Number of lines."""
        return self.text.count(b"\n")


def read_blocks(file: FilePath, size: int, told: Sequence[Told] = ()) -> Iterator[Block]:
    """Read the file in blocks of about `size` bytes that end at the end of a line.

    Blank lines at the end of the file do not count. `told` get the bytes of the file.
    """
    line, rest, start = 1, b"", True
    with open_text(file, told) as stream:
        while True:
            text = rest + read_bytes(stream, size, file)
            if len(text) == len(rest):
                break
            if start and len(text) >= len(BYTE_ORDER_MARK):
                text, start = text.removeprefix(BYTE_ORDER_MARK), False
            end = _end_of_lines(text)
            rest = text[end:]
            if end:
                block = Block(line, text[:end])
                yield block
                line += block.lines
            if len(rest) > _LONGEST:
                raise InputError(
                    f"{file}: line {line} is longer than {_LONGEST:,} bytes; check that the lines "
                    "end with a line feed"
                )
    if rest.strip(_BLANK):
        yield Block(line, rest + b"\n")
    elif line == 1:
        raise InputError(f"{file}: the file is empty; give a log with at least one row")


def _end_of_lines(text: bytes) -> int:
    """Return where the whole lines end, before blank lines that may end the file.

    >>> _end_of_lines(b"a\\n\\nb\\n\\n"), _end_of_lines(b"a\\nb"), _end_of_lines(b"\\n")
    (5, 2, 0)
    """
    length = text.rfind(b"\n") + 1
    while length:
        # Only the end of the text is copied.
        start = max(0, length - _TAIL)
        content = text[start:length].rstrip(_BLANK)
        if content:
            return text.find(b"\n", start + len(content)) + 1
        length = start
    return 0


def count_lines(file: FilePath, size: int = 1 << 24) -> int:
    """Count the lines as `read_blocks` does; the last one may lack its line end."""
    before, lines = 0, 0
    with open_text(file) as stream:
        while text := read_bytes(stream, size, file):
            if content := text.rstrip(_BLANK):
                lines = before + content.count(b"\n") + 1
            before += text.count(b"\n")
    return lines


_PIECE = 1 << 19  # bytes that Arrow parses at a time: they fit into the cache of a core


class LineParser:
    """Parses lines into a table of the wanted columns, and tells which lines are damaged.

    Whether a line is damaged depends on this line alone, never on its neighbors.

    Args:
        log_format: the columns.
        file: the file, for error messages.
        columns: all columns of the file, in its order.
        coded: whether categorical columns of the table are codes with a dictionary.
    """

    def __init__(
        self, log_format: LogFormat, file: FilePath, columns: list[str], *, coded: bool = False
    ) -> None:
        import pyarrow as pa

        self.log_format, self.file, self.columns = log_format, file, columns
        self._roles = log_format.sources
        self._types = {each.name: each.cell_type(coded=coded) for each in self._roles}
        self._texts = {
            name: pa.string() if pa.types.is_primitive(kind) else kind
            for name, kind in self._types.items()
        }
        self._checked = [each for each in self._roles if not each.any_text]
        self._quotes = log_format.quotes
        self._open_quote = _open_quote(log_format.separator)

    def parse(self, block: Block) -> ParsedRows:
        """Parse whole lines; the table has the good ones, after each other."""
        import pyarrow as pa

        text, places = block.text, np.arange(block.lines)
        if not _is_text(text):
            text, places = _kept(text, places, _is_text, places)
        found = self._rows(text, len(places))
        if found is None:
            text, places = _kept(
                text, places, self._is_closed, _odd_quotes(text, self.log_format.separator)
            )
            found = self._rows(text, len(places))
        if found is None:
            raise RuntimeError(f"{self.file}: Arrow read other lines than those of the file")
        given, read = found
        numbers, right = self._numbers(given)
        table, good = checked(numbers, self._checked, self.file)
        good &= right & self._are_not_blank(text, given)[read]
        if not good.all():
            table = table.filter(pa.array(good))
        places = places[read][good]
        return ParsedRows(
            table=table,
            positions=places.astype(np.uint64),
            lines=block.lines,
            bad=self._bad_lines(block, places) if len(places) < block.lines else [],
            text=block.text,
        )

    def _is_closed(self, line: bytes) -> bool:
        """Return whether all quotes of a line are closed; an open one takes in the next line."""
        return b'"' not in line or not self._open_quote.match(line)

    def _rows(self, text: bytes, lines: int) -> tuple[pa.Table, npt.NDArray[np.bool_]] | None:
        """Return the rows, and which lines they are: those with the right number of columns.

        Numbers are text if one of them is wrong. Return None if a quote of a line is open.
        """
        import pyarrow as pa

        if not lines:
            return pa.schema(self._texts.items()).empty_table(), np.ones(0, bool)
        quoted = self._quotes and b'"' in text
        if quoted and not self._is_closed(text[text.rfind(b"\n", 0, -1) + 1 : -1]):
            return None  # Arrow accepts a quote that is open at the end of the text
        whole = len(text) + 1
        # Pieces take half the time. A quote may be open, or a line end split, at the end of one.
        size = whole if quoted or b"\r" in text else _PIECE
        first = self._texts if self._has_hexadecimal(text) else self._types
        for types, piece in ((first, size), (self._texts, size), (self._texts, whole)):
            try:
                return self._read(text, lines, types, piece)
            except pa.ArrowInvalid:  # a wrong number, or a line that is longer than a piece
                continue
        return None

    def _has_hexadecimal(self, text: bytes) -> bool:
        """Return whether an integer may be written like 0x1f, which Arrow would accept."""
        whole = self.log_format.integer or self.log_format.buckets
        if not whole or not any(map(text.__contains__, (b"x", b"X"))):
            return False
        return b"0x" in text or b"0X" in text

    def _read(
        self, text: bytes, lines: int, types: dict[str, pa.DataType], size: int
    ) -> tuple[pa.Table, npt.NDArray[np.bool_]] | None:
        """Read the columns in pieces of this size; return what `_rows` does."""
        import pyarrow as pa
        from pyarrow import csv

        good = np.ones(lines, bool)

        def skip(row: csv.InvalidRow) -> str:
            good[row.number - 1] = False
            return "skip"

        table = csv.read_csv(
            pa.py_buffer(text),
            csv.ReadOptions(column_names=self.columns, block_size=size, use_threads=False),
            csv.ParseOptions(
                delimiter=self.log_format.separator,
                quote_char='"' if self._quotes else False,
                ignore_empty_lines=False,
                invalid_row_handler=skip,
            ),
            csv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                strings_can_be_null=True,
                null_values=[""],
            ),
        )
        return (table, good) if table.num_rows == np.count_nonzero(good) else None

    def _numbers(self, table: pa.Table) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
        """Return the table with numbers that were read as text, and which rows have right ones."""
        import pyarrow as pa

        columns, good = dict(zip(table.column_names, table.columns)), np.ones(len(table), bool)
        for name, kind in self._types.items():
            if pa.types.is_primitive(kind) and columns[name].type != kind:
                columns[name], right = read_numbers(columns[name], kind)
                good &= right
        return pa.table(columns), good

    def _are_not_blank(self, text: bytes, table: pa.Table) -> npt.NDArray[np.bool_]:
        """Return which lines are not blank, bool [lines].

        Arrow takes a blank line for a row of missing values.
        """
        if all(column.null_count for column in table.columns):
            return np.array([line not in (b"", b"\r") for line in text.split(b"\n")[:-1]], bool)
        return np.ones(text.count(b"\n"), bool)

    def _bad_lines(self, block: Block, good: npt.NDArray[np.int64]) -> list[BadLine]:
        """Describe all lines but the good ones."""
        is_bad = np.ones(block.lines, bool)
        is_bad[good] = False
        lines = block.text.split(b"\n")
        return [
            BadLine(str(self.file), block.first_line + i, self._reason(lines[i]), lines[i])
            for i in np.flatnonzero(is_bad).tolist()
        ]

    def _reason(self, line: bytes) -> str:
        """Describe what is wrong with a bad line."""
        try:
            text = line.decode("utf-8").removesuffix("\r")
        except UnicodeDecodeError:
            return "bytes that are not UTF-8 text"
        if not text:
            return "a blank line"
        if "\r" in text:
            return "a carriage return inside the line"
        cells = self.log_format.cells(text)
        if len(cells) != len(self.columns):
            return f"{len(cells)} columns instead of {len(self.columns)}"
        damage = damage_of(self._roles, dict(zip(self.columns, cells, strict=True)))
        is_open = damage == NOT_READABLE and '"' in text and self._quotes
        return "a quote that is not closed" if is_open else damage


def _open_quote(separator: str) -> re.Pattern[bytes]:
    """Return what matches a line whose last quote is open; only one that starts a cell counts."""
    quoted, end = rb'"[^"]*(?:""[^"]*)*', b"[^" + re.escape(separator.encode()) + b"]*"
    cell = b"(?:" + quoted + b'"(?!")' + end + b'|(?!")' + end + b")"
    return re.compile(b"(?:" + cell + re.escape(separator.encode()) + b")*" + quoted + rb"\Z")


def _odd_quotes(text: bytes, separator: str) -> npt.NDArray[np.int64]:
    """Return the lines that have other quotes than one at the start and one at the end of a cell.

    Among them are all lines with an open quote.
    """
    data, ends = np.frombuffer(text, np.uint8), _ends(text)
    quotes = np.flatnonzero(data == ord('"'))
    lines = np.searchsorted(ends, quotes, side="right")
    firsts = np.searchsorted(lines, lines)  # the first quote of the line of each
    is_first = (np.arange(len(quotes)) - firsts) % 2 == 0
    before, after = data[np.maximum(quotes - 1, 0)], data[quotes + 1]
    starts = (before == ord(separator)) | (before == ord("\n")) | (quotes == 0)
    stops = (after == ord(separator)) | (after == ord("\n")) | (after == ord("\r"))
    has_pair = np.append(lines[1:] == lines[:-1], False)
    return np.unique(lines[np.where(is_first, ~(starts & has_pair), ~stops)])


def _ends(text: bytes) -> npt.NDArray[np.int64]:
    """Return where each line ends, after its line end."""
    return np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n")) + 1


def _kept(
    text: bytes,
    places: npt.NDArray[np.int64],
    keep: Callable[[bytes], bool],
    odd: npt.NDArray[np.int64],
) -> tuple[bytes, npt.NDArray[np.int64]]:
    """Return the lines to keep, and their places; only the odd lines need a look."""
    ends = _ends(text)
    sizes, kept = np.diff(ends, prepend=0), np.ones(len(ends), bool)
    kept[odd] = [keep(text[ends[i] - sizes[i] : ends[i]]) for i in odd]
    return np.frombuffer(text, np.uint8)[np.repeat(kept, sizes)].tobytes(), places[kept]


def _is_text(text: bytes) -> bool:
    """Return whether lines are UTF-8 with carriage returns only at their ends."""
    if b"\r" in text and text.count(b"\r") != text.count(b"\r\n"):
        return False
    if text.isascii():
        return True
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
