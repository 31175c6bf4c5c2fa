"""A bar of the bytes that were read of some files, which tells the time left."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cowclip_merlin.addresses import FilePath, size_of
from cowclip_merlin.system.console import progress
from cowclip_merlin.workflows.raw.file_formats import PARQUET, format_of
from cowclip_merlin.workflows.raw.parsed_rows import ParsedRows
from cowclip_merlin.workflows.raw.readers import open_parquet

if TYPE_CHECKING:
    from tqdm import tqdm


@dataclass
class Counted:
    """Passes the bytes of a file on to its digest, and to a bar."""

    bar: tqdm
    digest: hashlib._Hash | None = None

    def update(self, data: bytes) -> None:
        """Add bytes."""
        self.bar.update(len(data))
        if self.digest is not None:
            self.digest.update(data)


class ReadingBar:
    """The bar, within a block.

    Args:
        files: to read.
    """

    def __init__(self, files: Sequence[FilePath]) -> None:
        self._bar = progress(desc="read", unit="B", unit_scale=True, unit_divisor=1024)
        self._bytes_of_a_row: dict[FilePath, float] = {}  # of parquet files
        if not self._bar.disable:  # a size at an address is a request
            self._bar.total = sum(map(size_of, files))

    def __enter__(self) -> ReadingBar:
        """Return the bar."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove it."""
        self._bar.close()

    def digest(self, digest: hashlib._Hash | None = None) -> Counted:
        """Return what `read_rows` takes, for a file of text, with the digest that it fills."""
        return Counted(self._bar, digest)

    def add(self, file: FilePath, rows: ParsedRows) -> None:
        """Add rows of a parquet file, whose bytes nobody sees."""
        if self._bar.disable or format_of(file) != PARQUET:
            return
        if file not in self._bytes_of_a_row:
            self._bytes_of_a_row[file] = size_of(file) / open_parquet(file).metadata.num_rows
        self._bar.update(int(self._bytes_of_a_row[file] * rows.lines))
