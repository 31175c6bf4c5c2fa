"""Read a plain or compressed text file in blocks of whole lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from cowclip_merlin.addresses import FilePath
from cowclip_merlin.errors import InputError
from cowclip_merlin.workflows.raw.file_formats import open_text, read_bytes

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


def read_blocks(file: FilePath, size: int) -> Iterator[Block]:
    """Read the file in blocks of about `size` bytes that end at the end of a line.

    Blank lines at the end of the file do not count.

    Raises:
        InputError: if the file is missing, empty, damaged, or no text, or a line exceeds 1 GiB.
    """
    line, rest, start = 1, b"", True
    with open_text(file) as stream:
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
