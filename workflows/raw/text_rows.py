"""Read the rows of a plain or compressed text log in blocks, and check them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from cowclip_merlin.errors import InputError
from cowclip_merlin.workflows.raw.log_format import LogFormat
from cowclip_merlin.workflows.raw.parsed_rows import ParsedRows
from cowclip_merlin.workflows.raw.text_blocks import Block, read_blocks
from cowclip_merlin.workflows.raw.text_lines import LineParser, read_header


def read_text_rows(
    file: Path,
    log_format: LogFormat,
    block_bytes: int,
    allowed_bad_lines: Callable[[int], int | None],
) -> Iterator[ParsedRows]:
    """Read and parse the file block by block.

    Args:
        file: the file to read.
        log_format: columns of the log.
        block_bytes: bytes of text per block.
        allowed_bad_lines: maps the number of lines in the next block to the number of them that
            may be damaged; parsing stops after more. None: no limit.

    Raises:
        InputError: if the file is missing, empty or damaged, or has other columns.
    """
    parser = None
    for block in read_blocks(file, block_bytes):
        if parser is None:
            columns, block = _columns(file, block, log_format)
            parser = LineParser(log_format, file, columns)
        if not block.text:
            continue
        lines = block.text.count(b"\n")
        table, positions, bad = parser.parse(block, allowed_bad_lines(lines))
        yield ParsedRows(table, positions.astype(np.uint64), lines, bad, block.text)


def _columns(file: Path, block: Block, log_format: LogFormat) -> tuple[list[str], Block]:
    """Return the columns of the file, and its first block without the header."""
    first, _, rest = block.text.partition(b"\n")
    if log_format.header:
        columns = read_header(first.removesuffix(b"\r"), log_format, file)
        return columns, Block(block.first_line + 1, rest)
    columns = list(log_format.file_columns)
    found = first.count(log_format.separator.encode()) + 1
    if found != len(columns) and not any(
        line.count(log_format.separator.encode()) + 1 == len(columns)
        for line in rest.split(b"\n", 100)[:100]
    ):
        raise InputError(
            f"{file}: line 1 has {found} columns, but a {log_format.kind} log has "
            f"{len(columns)}; check the kind and the file"
        )
    return columns, block
