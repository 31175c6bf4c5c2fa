"""Read the rows of a plain or compressed text log in blocks, and check them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from cowclip_merlin.errors import InputError
from cowclip_merlin.workflows.raw.log_format import LogFormat
from cowclip_merlin.workflows.raw.parsed_rows import ParsedRows
from cowclip_merlin.workflows.raw.text_blocks import Block, read_blocks
from cowclip_merlin.workflows.raw.text_lines import LineParser, read_header
from cowclip_merlin.workflows.threads import Threads


def read_text_rows(
    file: Path,
    log_format: LogFormat,
    block_bytes: int,
    allowed_bad_lines: Callable[[int], int | None],
    threads: Threads | None = None,
    *,
    coded: bool = False,
) -> Iterator[ParsedRows]:
    """Read and parse the file block by block.

    Args:
        file: the file to read.
        log_format: columns of the log.
        block_bytes: bytes of text per block.
        allowed_bad_lines: maps the number of lines in the next block to the number of them that
            may be damaged; parsing stops after more. None: no limit.
        threads: parse on these; None: on the caller's.
        coded: whether categorical columns of the tables are codes with a dictionary.

    Raises:
        InputError: if the file is missing, empty or damaged, or has other columns.
    """
    blocks = read_blocks(file, block_bytes)
    columns, first = _columns(file, next(blocks), log_format)
    parser = LineParser(log_format, file, columns, coded=coded)
    in_order = _one_by_one if threads is None else threads.in_order
    filled = (block for block in chain([first], blocks) if block.text)
    for block, table in in_order(parser.parse_undamaged, filled):
        lines = block.text.count(b"\n")
        if table is None:
            table, positions, bad = parser.parse_good_lines(block, allowed_bad_lines(lines))
        else:
            positions, bad = np.arange(lines), []
        yield ParsedRows(table, positions.astype(np.uint64), lines, bad, block.text)


def _one_by_one(
    function: Callable[[Block], Any], blocks: Iterable[Block]
) -> Iterator[tuple[Block, Any]]:
    return ((block, function(block)) for block in blocks)


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
