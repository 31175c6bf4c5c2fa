"""Which row of the log each row of a split is, in `DATA/rows/<split>.parquet`.

Rows count from 0, with damaged ones and without header lines, over the files of the log. Files that
a user gives for a split of their own count from its first file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cowclip_merlin.system.checksums import ChecksumFile
from cowclip_merlin.system.files import reading_parquet
from cowclip_merlin.types import Array

if TYPE_CHECKING:
    from cowclip_merlin.workflows.prepared.folder import PreparedData

ROWS = "rows"
"""Folder in a prepared folder."""


@dataclass
class RowNumbers:
    """Writes the numbers of the rows while they are read.

    Attributes:
        folder: to write.
        files: split -> its file, and what writes to it.
    """

    folder: Path
    files: dict[str, tuple[ChecksumFile, Any]] = field(default_factory=dict)

    def add(self, split: str, numbers: Array) -> None:
        """Append the numbers of the next rows of a split, [n]."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.table({"row": pa.array(numbers.astype(np.int64))})
        if split not in self.files:
            self.folder.mkdir(exist_ok=True)
            file = ChecksumFile(self.folder / f"{split}.parquet")
            # About a byte a row. A delta encoding has less, but pyarrow 10 cannot write it.
            writer = pq.ParquetWriter(file, table.schema, use_dictionary=False, compression="zstd")
            self.files[split] = file, writer
        self.files[split][1].write_table(table)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Close the files at the end of the block."""
        try:
            yield
        finally:
            for file, writer in self.files.values():
                writer.close()
                file.close()

    def checksums(self) -> dict[str, str]:
        """Return file -> checksum, after `writing`."""
        return {f"{ROWS}/{name}.parquet": file.checksum() for name, (file, _) in self.files.items()}


def row_numbers(data: PreparedData, split: str) -> npt.NDArray[np.int64] | None:
    """Return the number of each row of a split, [n]; None if the folder does not have them.

    Raises:
        InputError: if the file is damaged.
    """
    import pyarrow.parquet as pq

    file = data.path / ROWS / f"{split}.parquet"
    if not file.exists():
        return None
    data.verify(file)
    with reading_parquet(file):
        return pq.read_table(file)["row"].to_numpy()
