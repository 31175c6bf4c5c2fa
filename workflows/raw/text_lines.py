"""Parse the lines of a raw log in blocks; check single lines only if a block has damage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cowclip_merlin.addresses import FilePath
from cowclip_merlin.types import ArrowColumn
from cowclip_merlin.workflows.raw.log_format import LogFormat
from cowclip_merlin.workflows.raw.parsed_rows import BadLine
from cowclip_merlin.workflows.raw.text_blocks import Block
from cowclip_merlin.workflows.raw.values import labels
from cowclip_merlin.workflows.raw.values.multi_values import (
    lists_of_values,
    vector_damage,
    vectors_of_values,
)

if TYPE_CHECKING:
    import pyarrow as pa

_PIECE = 1 << 19  # bytes that Arrow parses at a time: they fit into the cache of a core
_LINES_PER_CHECK = 1024  # lines per piece that is parsed again if the block has a damaged line


class LineParser:
    """Parses lines into a table of the wanted columns.

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
        from pyarrow import csv as arrow_csv

        self.log_format, self.file, self.columns = log_format, file, columns
        text = pa.dictionary(pa.int32(), pa.string()) if coded else pa.string()
        types = dict.fromkeys(log_format.categorical, text)
        types |= dict.fromkeys((*log_format.multi, *log_format.vectors), pa.string())
        types |= {
            name: pa.int64() if name in log_format.integer else pa.float64()
            for name in log_format.continuous
        }
        types |= {
            name: pa.float64() if regression else pa.string()
            for name, regression in log_format.targets
        }
        if log_format.weight:
            types |= {log_format.weight: pa.float64()}
        self.types = {name: types[name] for name in log_format.columns}
        self._quotes = log_format.quotes
        quote = '"' if self._quotes else False
        self._parse = arrow_csv.ParseOptions(
            delimiter=log_format.separator, quote_char=quote, ignore_empty_lines=False
        )
        self._convert = arrow_csv.ConvertOptions(
            column_types=self.types,
            include_columns=list(self.types),
            strings_can_be_null=True,
            null_values=[""],
        )

    def parse_undamaged(self, block: Block) -> pa.Table | None:
        """Parse all lines of a block into a table; return None if any line is damaged."""
        return self._parse_all(block.text, block.lines)

    def _parse_all(self, text: bytes, lines: int) -> pa.Table | None:
        """Parse all lines into a table; None if any line is damaged."""
        if not _is_text(text) or _has_blank_line(text) or self._has_hexadecimal(text):
            return None
        text, extra = self._with_quote_guard(text)
        table = self._read(text)
        if table is None or table.num_rows != lines + extra:
            return None
        table = table.slice(0, lines)
        given, table = table, self._with_labels(table)
        if not self._has_labels(given, table):
            return None
        if any(not _all_finite(table[name]) for name in self.log_format.continuous):
            return None
        if not self._has_weights(table):
            return None
        table, good = self._with_vectors(table)
        return self._with_lists(table) if good else None

    def _read(self, text: bytes) -> pa.Table | None:
        """Read the columns with Arrow; None if a line is damaged.

        Pieces take half the time of the whole text. A quote may be open, or a line end split, at
        the end of a piece, so a text with these is one piece; so is one with a very long line.
        """
        import pyarrow as pa
        from pyarrow import csv as arrow_csv

        is_plain = b"\r" not in text and not (self._quotes and b'"' in text)
        for size in (_PIECE, len(text) + 1) if is_plain else (len(text) + 1,):
            options = arrow_csv.ReadOptions(
                column_names=self.columns, block_size=size, use_threads=False
            )
            try:
                return arrow_csv.read_csv(pa.py_buffer(text), options, self._parse, self._convert)
            except pa.ArrowInvalid:
                if size > len(text):
                    return None
        return None

    def _has_weights(self, table: pa.Table) -> bool:
        """Return whether all rows have a weight, if the log has weights."""
        import pyarrow.compute as pc

        name = self.log_format.weight
        return not name or pc.all(labels.are_weights(table[name])).as_py() is not False

    def _has_labels(self, given: pa.Table, table: pa.Table) -> bool:
        """Return whether all rows have a label, or with several targets one of them."""
        import pyarrow.compute as pc

        targets = self.log_format.targets
        if not self.log_format.float_labels:
            return not any(table[name].null_count for name, _ in targets)
        parsed = {name: table[name] for name, _ in targets}
        return pc.all(labels.rows_with_labels(targets, given, parsed)).as_py() is not False

    def _has_hexadecimal(self, text: bytes) -> bool:
        """Return whether an integer is written like 0x1f, which Arrow would accept."""
        if not self.log_format.integer or not any(map(text.__contains__, (b"x", b"X"))):
            return False
        if b"0x" not in text and b"0X" not in text:
            return False
        positions = [self.columns.index(name) for name in self.log_format.integer]
        for line in text.decode().split("\n"):
            cells = self.log_format.cells(line)
            if any("x" in cells[i].lower() for i in positions if i < len(cells)):
                return True
        return False

    def _with_quote_guard(self, text: bytes) -> tuple[bytes, int]:
        """Repeat the last line if the text could end with an open quote.

        Arrow accepts an open quote at the end of the text. With another line after it, an open
        quote swallows that line, and the number of rows shows it.
        """
        last = text[text.rfind(b"\n", 0, -1) + 1 :]
        return (text + last, 1) if self._quotes and b'"' in last else (text, 0)

    def _with_labels(self, table: pa.Table) -> pa.Table:
        """Convert labels of 0 and 1 from text."""
        for name, regression in self.log_format.targets:
            if not regression:
                position = table.column_names.index(name)
                table = table.set_column(position, name, labels.parse_labels(table[name]))
        return table

    def _with_lists(self, table: pa.Table) -> pa.Table:
        """Split the text of columns with several values per row."""
        for name, separator in self.log_format.multi.items():
            where = f"{self.file}: column {name!r}"
            lists = lists_of_values(table[name], separator, where=where)
            table = table.set_column(table.column_names.index(name), name, lists)
        return table

    def _with_vectors(self, table: pa.Table) -> tuple[pa.Table, bool]:
        """Make vectors of text; return whether all of them are right, too."""
        all_good = True
        for name, length in self.log_format.vectors.items():
            where, separator = f"{self.file}: column {name!r}", self.log_format.vector_separator
            vectors, good = vectors_of_values(table[name], separator, length, where=where)
            table = table.set_column(table.column_names.index(name), name, vectors)
            all_good = all_good and bool(good.all())
        return table, all_good

    def parse_good_lines(
        self, block: Block, allowance: int | None
    ) -> tuple[pa.Table, npt.NDArray[np.int64], list[BadLine]]:
        """Parse a block that has bad lines: the table, the position of each row, and the bad lines.

        Whether a line is bad depends on this line alone, never on its neighbors.

        Args:
            block: whole lines.
            allowance: stop after more bad lines than this; later lines are then omitted.
        """
        import pyarrow as pa

        lines = block.text.split(b"\n")[:-1]
        tables, positions, bad = [self._empty()], [], []
        for start in range(0, len(lines), _LINES_PER_CHECK):
            for position, count, table in self._bisect(
                lines[start : start + _LINES_PER_CHECK], start
            ):
                if table is None:
                    bad.append(self._bad(lines[position], block.first_line + position))
                else:
                    tables.append(table)
                    positions.append(np.arange(position, position + count))
            if allowance is not None and len(bad) > allowance:
                break
        found = np.concatenate(positions) if positions else np.empty(0, np.int64)
        return pa.concat_tables(tables), found, bad

    def _bisect(
        self, lines: list[bytes], position: int
    ) -> Iterator[tuple[int, int, pa.Table | None]]:
        """Yield position, number of lines and table of each run of good lines.

        Yield each bad line by itself, with None as its table.
        """
        table = self._parse_all(b"\n".join(lines) + b"\n", len(lines))
        if table is not None or len(lines) == 1:
            yield position, len(lines), table
            return
        middle = len(lines) // 2
        yield from self._bisect(lines[:middle], position)
        yield from self._bisect(lines[middle:], position + middle)

    def _empty(self) -> pa.Table:
        import pyarrow as pa

        table = self._with_labels(pa.schema(self.types.items()).empty_table())
        return self._with_lists(self._with_vectors(table)[0])

    def _bad(self, line: bytes, number: int) -> BadLine:
        return BadLine(str(self.file), number, self._reason(line), line)

    def _reason(self, line: bytes) -> str:
        """Describe what is wrong with a bad line."""
        log_format = self.log_format
        try:
            text = line.decode("utf-8").removesuffix("\r")
        except UnicodeDecodeError:
            return "bytes that are not UTF-8 text"
        if not text:
            return "a blank line"
        if "\r" in text:
            return "a carriage return inside the line"
        cells = log_format.cells(text)
        if len(cells) != len(self.columns):
            return f"{len(cells)} columns instead of {len(self.columns)}"
        row = dict(zip(self.columns, cells, strict=True))
        if damage := self._damage_of_labels(row):
            return damage
        for name in log_format.continuous:
            if row[name] and not _is_number(row[name], whole=name in log_format.integer):
                what = "a whole number" if name in log_format.integer else "a number"
                return f"{name} is {row[name]!r}, not {what}"
        if (name := log_format.weight) and not labels.is_weight(row[name]):
            return labels.weight_damage(name, row[name])
        for name, length in log_format.vectors.items():
            if damage := vector_damage(name, row[name], log_format.vector_separator, length):
                return damage
        return "a quote that is not closed" if '"' in text and self._quotes else "not readable"

    def _damage_of_labels(self, row: dict[str, str]) -> str | None:
        """Describe what is wrong with the labels of a line, if anything."""
        targets, label = self.log_format.targets, self.log_format.label
        if self.log_format.float_labels:
            given = {name: row[name] or None for name, _ in targets}
            return labels.damage_of_labels(targets, given)
        if label and labels.label_of(row[label]) is None:
            return labels.damage_of(label, row[label])
        return None


def _is_text(text: bytes) -> bool:
    """Return whether it is UTF-8 with carriage returns only at the ends of lines."""
    if b"\r" in text and text.count(b"\r") != text.count(b"\r\n"):
        return False
    if text.isascii():
        return True
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _has_blank_line(text: bytes) -> bool:
    """Return whether a line is empty; Arrow would read missing values."""
    starts = text.startswith((b"\n", b"\r\n"))
    return starts or b"\n\n" in text or b"\n\r\n" in text


def _is_number(text: str, *, whole: bool) -> bool:
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        return False
    return abs(value) < 2**63 if whole else value - value == 0


def _all_finite(column: ArrowColumn) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_floating(column.type):
        return True
    return pc.all(pc.is_finite(column)).as_py() in (True, None)
