"""Lines of a raw log: read in blocks, parsed whole, checked one by one only where needed."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cowclip_merlin.errors import InputError
from cowclip_merlin.workflows.layout import Layout

_PIECE = 1024  # lines that are looked at one by one if one of them is damaged


@dataclass(frozen=True)
class BadLine:
    """A line that is no row of this log.

    Attributes:
        file: name of the file.
        line: its number there, from 1.
        reason: what is wrong.
        text: the line.
    """

    file: str
    line: int
    reason: str
    text: bytes


@dataclass(frozen=True)
class Block:
    """Whole lines of a file.

    Attributes:
        first_line: number of the first one, from 1.
        text: the lines.
    """

    first_line: int
    text: bytes


def open_raw(file: Path) -> Any:
    """Open a plain or .gz file for reading bytes.

    Raises:
        InputError: it does not exist or is a folder.
    """
    if not file.is_file():
        raise InputError(f"{file}: no such file; check the path")
    return gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb")


def blocks(file: Path, size: int) -> Iterator[Block]:
    """The file in blocks of about `size` bytes that end at a line's end.

    Raises:
        InputError: the file is missing, empty, or damaged gzip.
    """
    line, rest = 1, b""
    with open_raw(file) as stream:
        while True:
            text = rest + _read(stream, size, file)
            if len(text) == len(rest):
                break
            end = text.rfind(b"\n") + 1
            rest = text[end:]
            if end:
                yield Block(line, text[:end])
                line += text.count(b"\n", 0, end)
    if rest:
        yield Block(line, rest + b"\n")
    elif line == 1:
        raise InputError(f"{file}: the file is empty; give a log with at least one row")


def _read(stream: Any, size: int, file: Path) -> bytes:
    try:
        return stream.read(size)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{file}: damaged gzip file ({error}); fetch it again") from error


def count_lines(file: Path, size: int = 1 << 24) -> int:
    """Number of lines, the last one with or without its line end."""
    lines, last = 0, b"\n"
    with open_raw(file) as stream:
        while text := _read(stream, size, file):
            lines += text.count(b"\n")
            last = text[-1:]
    return lines + (last != b"\n")


def read_header(text: bytes, layout: Layout, file: Path) -> list[str]:
    """Names of the columns in a header line.

    Raises:
        InputError: a column of the layout is missing.
    """
    names = next(csv.reader([text.decode("utf-8", "replace")], delimiter=layout.separator), [])
    for name in (layout.label, *layout.categorical, *layout.continuous):
        if name not in names:
            shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            raise InputError(f"{file}: no column {name!r} in the header ({shown}); check the names")
    return names


class Parser:
    """Turns lines into a table of the columns a layout wants.

    Args:
        layout: the columns.
        file: for messages.
        columns: all columns of the file, in its order.
    """

    def __init__(self, layout: Layout, file: Path, columns: list[str]) -> None:
        import pyarrow as pa
        from pyarrow import csv as arrow_csv

        self.layout, self.file, self.columns = layout, file, columns
        wanted = [layout.label, *layout.categorical, *layout.continuous]
        types = dict.fromkeys(layout.categorical, pa.string())
        types |= {
            name: pa.int64() if name in layout.integer else pa.float64()
            for name in layout.continuous
        }
        self.types = {layout.label: pa.int8()} | types
        quote = '"' if layout.separator == "," else False
        self._parse = arrow_csv.ParseOptions(
            delimiter=layout.separator, quote_char=quote, ignore_empty_lines=False
        )
        self._convert = arrow_csv.ConvertOptions(
            column_types=self.types,
            include_columns=wanted,
            strings_can_be_null=True,
            null_values=[""],
        )

    def parse(self, block: Block) -> tuple[Any, npt.NDArray[np.int64], list[BadLine]]:
        """A table, the place of each of its rows among the block's lines, and the bad lines."""
        lines = block.text.count(b"\n")
        table = self._whole(block.text, lines)
        if table is not None:
            return table, np.arange(lines), []
        return self._piece_by_piece(block)

    def _whole(self, text: bytes, lines: int) -> Any:
        """The table of these lines, or None if any of them is damaged."""
        import pyarrow as pa
        import pyarrow.compute as pc
        from pyarrow import csv as arrow_csv

        options = arrow_csv.ReadOptions(column_names=self.columns, block_size=len(text) + 1)
        try:
            table = arrow_csv.read_csv(pa.py_buffer(text), options, self._parse, self._convert)
        except pa.ArrowInvalid:
            return None
        label = table[self.layout.label]
        if table.num_rows != lines or label.null_count:
            return None
        if not pc.all(pc.is_in(label, pa.array([0, 1], pa.int8()))).as_py():
            return None
        if any(not _finite(table[name]) for name in self.layout.continuous):
            return None
        return table

    def _piece_by_piece(self, block: Block) -> tuple[Any, npt.NDArray[np.int64], list[BadLine]]:
        import pyarrow as pa

        lines = block.text.split(b"\n")[:-1]
        tables, places, bad = [], [], []
        for start in range(0, len(lines), _PIECE):
            piece = lines[start : start + _PIECE]
            good = list(range(len(piece)))
            table = self._whole(b"\n".join(piece) + b"\n", len(piece))
            if table is None:
                reasons = [self._reason(line) for line in piece]
                good = [i for i, reason in enumerate(reasons) if reason is None]
                bad += [
                    BadLine(str(self.file), block.first_line + start + i, reason, piece[i])
                    for i, reason in enumerate(reasons)
                    if reason is not None
                ]
                if not good:
                    continue
                table = self._whole(b"\n".join(piece[i] for i in good) + b"\n", len(good))
                if table is None:
                    raise RuntimeError(f"{self.file}: lines checked one by one do not parse")
            tables.append(table)
            places += [start + i for i in good]
        table = pa.concat_tables(tables) if tables else self._empty()
        return table, np.array(places, np.int64), bad

    def _empty(self) -> Any:
        import pyarrow as pa

        return pa.schema(self.types.items()).empty_table()

    def _reason(self, line: bytes) -> str | None:
        """What is wrong with a line; None if nothing is."""
        layout = self.layout
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes that are not UTF-8 text"
        cells = _cells(text.removesuffix("\r"), layout.separator)
        if len(cells) != len(self.columns):
            return f"{len(cells)} columns instead of {len(self.columns)}"
        row = dict(zip(self.columns, cells, strict=True))
        if row[layout.label].strip() not in ("0", "1"):
            return f"label {row[layout.label]!r} is neither 0 nor 1"
        for name in layout.continuous:
            if row[name] and not _is_number(row[name], whole=name in layout.integer):
                what = "a whole number" if name in layout.integer else "a number"
                return f"{name} is {row[name]!r}, not {what}"
        return self._last_resort(line)

    def _last_resort(self, line: bytes) -> str | None:
        """Arrow's word on a line that looks right."""
        return "not readable" if self._whole(line + b"\n", 1) is None else None


def _cells(text: str, separator: str) -> list[str]:
    if separator != ",":
        return text.split(separator)
    return next(csv.reader([text]), [""])


def _is_number(text: str, *, whole: bool) -> bool:
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        return False
    return abs(value) < 2**63 if whole else value - value == 0


def _finite(column: Any) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_floating(column.type):
        return True
    return pc.all(pc.is_finite(column)).as_py() in (True, None)
