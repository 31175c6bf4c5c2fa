"""Read the rows of a plain or compressed text log in blocks, and check them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from cowclip_merlin.addresses import FilePath
from cowclip_merlin.errors import InputError
from cowclip_merlin.workflows.parallel import Threads
from cowclip_merlin.workflows.raw.log_format import EVENTS, TAB, TABLE, LogFormat
from cowclip_merlin.workflows.raw.parsed_rows import ParsedRows
from cowclip_merlin.workflows.raw.text_lines import Block, LineParser, read_blocks

_SEPARATORS = (",", TAB, ";", "|", " ")  # that an error message may suggest
_LINES = 101  # to search for one with the right number of columns


def read_text_rows(
    file: FilePath,
    log_format: LogFormat,
    block_bytes: int,
    threads: Threads | None = None,
    *,
    coded: bool = False,
    digest: hashlib._Hash | None = None,
) -> Iterator[ParsedRows]:
    """Read and parse the file block by block."""
    blocks = read_blocks(file, block_bytes, digest)
    columns, first = _columns(file, next(blocks), log_format)
    parser = LineParser(log_format, file, columns, coded=coded)
    filled = (block for block in chain([first], blocks) if block.text)
    yield from (map if threads is None else threads.in_order)(parser.parse, filled)


def _columns(file: FilePath, block: Block, log_format: LogFormat) -> tuple[list[str], Block]:
    """Return the columns of the file, and its first block without the header."""
    first, _, rest = block.text.partition(b"\n")
    if log_format.header:
        columns = read_header(first.removesuffix(b"\r"), log_format, file)
        return columns, Block(block.first_line + 1, rest)
    check_first_lines(block.text, log_format, file)
    return list(log_format.file_columns), block


def read_header(text: bytes, log_format: LogFormat, file: FilePath) -> list[str]:
    """Read the names of the columns from a header line."""
    try:
        line = text.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(
            f"{file}: the header is not UTF-8 text; convert the file to UTF-8"
        ) from None
    names = log_format.cells(line)
    for name in log_format.columns:
        if name not in names:
            raise InputError(
                f"{file}: no column {name!r} in the header ({_quoted(names)}); "
                f"{_remedy(line, names, log_format)}"
            )
        if names.count(name) > 1:
            raise InputError(f"{file}: column {name!r} occurs twice in the header; rename one")
    return names


def check_first_lines(block: bytes, log_format: LogFormat, file: FilePath) -> None:
    """Check that the first lines of a file without a header have its columns."""
    lines = [line.decode("utf-8", "replace") for line in block.split(b"\n", _LINES)[:_LINES]]
    found = [log_format.cells(line.removesuffix("\r")) for line in lines]
    columns = list(log_format.file_columns)
    if found[0] == columns:
        raise InputError(
            f"{file}: line 1 names the columns, as {_setting(log_format)} does; remove this line"
        )
    if not any(len(cells) == len(columns) for cells in found):
        raise InputError(
            f"{file}: line 1 has {len(found[0])} columns, but {_setting(log_format)} has "
            f"{len(columns)}; {_remedy_without_header(lines[0], log_format)}"
        )


def _remedy_without_header(line: str, log_format: LogFormat) -> str:
    if log_format.kind not in (TABLE, EVENTS):
        return "check the kind and the file"
    for other in _other_separators(log_format):
        if len(other.cells(line)) == len(log_format.file_columns):
            return _use(other.separator, log_format)
    return "name each column of the file, in its order"


def _setting(log_format: LogFormat) -> str:
    """Return where the columns of a file without a header come from."""
    found = {TABLE: "`columns`", EVENTS: "the columns of the features file"}
    return found.get(log_format.kind, f"a {log_format.kind} log")


def _quoted(names: list[str]) -> str:
    """Quote the first names, so that spaces around them are visible.

    >>> _quoted(["a", " b"])
    "'a', ' b'"
    """
    return ", ".join(repr(name[:40]) for name in names[:8]) + (", ..." if len(names) > 8 else "")


def _remedy(line: str, names: list[str], log_format: LogFormat) -> str:
    """Say how to read a file whose header lacks a column."""
    for other in _other_separators(log_format):
        if set(log_format.columns) <= set(other.cells(line)):
            return _use(other.separator, log_format)
    known = set(names) & set(log_format.columns)
    if log_format.kind == TABLE and not known:
        separator = "`separator`, or " if len(names) == 1 else ""
        return (
            f"check the names; prepare table reads other files with {separator}`columns` "
            "NAME,NAME,... if there is no header"
        )
    if log_format.kind == EVENTS and not known and len(names) > 1:
        return "check the names; if the file has no header, list its columns in the features file"
    if len(names) > 1 or log_format.kind == TABLE:
        return "check the names"
    return _rename(log_format)


def _other_separators(log_format: LogFormat) -> Iterator[LogFormat]:
    found = (separator for separator in _SEPARATORS if separator != log_format.separator)
    return (replace(log_format, separator=separator) for separator in found)


def _use(separator: str, log_format: LogFormat) -> str:
    """Say how to read a file with this separator."""
    if log_format.kind == TABLE:
        return f"in prepare table, add `separator` {'tab' if separator == TAB else repr(separator)}"
    return _rename(log_format)


def _rename(log_format: LogFormat) -> str:
    if log_format.separator == ",":
        return "separate columns by commas, or by tabs in a file named .tsv or .txt"
    return "separate columns by tabs, or by commas in a file named .csv"
