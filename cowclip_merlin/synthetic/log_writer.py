"""Write a generated log chunk by chunk, and then the facts about it."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from cowclip_merlin.errors import InputError
from cowclip_merlin.metrics import log_loss, roc_auc
from cowclip_merlin.settings import Settings, option
from cowclip_merlin.synthetic.random_numbers import Words
from cowclip_merlin.system.files import atomic_write, check_writable, write_json
from cowclip_merlin.types import ArrowColumn, Floats


@dataclass(frozen=True, kw_only=True)
class GeneratedLog:
    """Facts about a generated log.

    Attributes:
        rows: number of rows.
        click_rate: share of clicks.
        distinct_ids: number of distinct values in all categorical columns together.
        bayes_auc: AUC of the true probabilities, the best possible.
        bayes_log_loss: log loss of the true probabilities, in nats.
        seed: seed of the log.
    """

    rows: int
    click_rate: float
    distinct_ids: int
    bayes_auc: float
    bayes_log_loss: float
    seed: int


@dataclass(frozen=True)
class LogChunk:
    """Some rows of a log.

    Attributes:
        clicks: labels, [n].
        probabilities: true probabilities of a click, [n].
        ids: ids of each categorical column, counted from 1, [n, fields]; 0: missing value.
        text: the lines of the file.
    """

    clicks: npt.NDArray[np.int8]
    probabilities: Floats
    ids: npt.NDArray[np.int64]
    text: memoryview


@dataclass(frozen=True, kw_only=True)
class LogSize(Settings):
    """Size and seed of a generated log.

    Raises:
        InputError: if a number is out of range.
    """

    rows: int = option(help="number of rows", at_least=1)
    seed: int = option(1234, "random seed of the log", at_least=0, below=2**64)


class LogWriter:
    """Writes one log, and at last the facts about it to `<name>.json` in the same folder.

    Args:
        path: file to write; compressed if the name ends in .gz.
        size: of the log, with its seed.
        overwrite: replace existing files.

    Raises:
        InputError: if there is too little memory, or a file cannot be written.

    Attributes:
        clicks: labels of all rows; filled when the rows are written.
        probabilities: true probabilities of all rows; filled at the same time.
    """

    def __init__(self, path: Path, size: LogSize, *, overwrite: bool) -> None:
        if path.suffix == ".parquet":
            raise InputError(f"{path}: the log is text; name it .csv, .tsv, or .csv.gz")
        check_writable(path, overwrite=overwrite)
        self.path, self.rows, self.seed = path, size.rows, size.seed
        self.facts_path = path.with_name(path.name + ".json")
        check_writable(self.facts_path, overwrite=overwrite)
        self.clicks, self.probabilities = _allocate(size.rows)

    def write(
        self,
        make: Callable[[Words], LogChunk],
        sizes: Sequence[int],
        *,
        chunk_rows: int,
        header: bytes = b"",
    ) -> GeneratedLog:
        """Write all rows; first remove the facts about an earlier log of this name.

        Args:
            make: maps row numbers to these rows.
            sizes: number of ids in each categorical column.
            chunk_rows: rows generated at a time.
            header: first line of the file.
        """
        from tqdm import tqdm

        name, rows = self.path.name, self.rows
        seen = [np.zeros(size + 1, bool) for size in sizes]
        bar = tqdm(total=rows, desc=f"generate {name}", unit="row", disable=None, leave=False)
        packed = self.path.suffix == ".gz"
        with atomic_write(self.path) as temporary, bar, _opened(temporary, packed) as file:
            file.write(header)
            for numbers in _chunks(rows, chunk_rows):
                chunk = make(numbers)
                where = slice(int(numbers[0]), int(numbers[-1]) + 1)
                self.clicks[where], self.probabilities[where] = chunk.clicks, chunk.probabilities
                file.write(chunk.text)
                for f, ever in enumerate(seen):
                    ever[chunk.ids[:, f]] = True
                bar.update(len(numbers))
            self.facts_path.unlink(missing_ok=True)
        return self._facts(sum(int(ever[1:].sum()) for ever in seen))

    def write_facts(self, facts: GeneratedLog) -> None:
        """Write the facts about the log; call this last."""
        write_json(self.facts_path, asdict(facts))

    def _facts(self, distinct_ids: int) -> GeneratedLog:
        return GeneratedLog(
            rows=self.rows,
            click_rate=float(self.clicks.mean()),
            distinct_ids=distinct_ids,
            bayes_auc=auc_or_half(self.clicks, self.probabilities),
            bayes_log_loss=log_loss(self.clicks, self.probabilities),
            seed=self.seed,
        )


def lines_of_columns(columns: Sequence[ArrowColumn], *, separator: str) -> memoryview:
    """Convert Arrow columns to lines of text; a missing value is empty."""
    import pyarrow as pa
    import pyarrow.compute as pc

    text = [column.cast(pa.string()) for column in columns]
    empty_for_missing = {"null_handling": "replace", "null_replacement": ""}
    # Not pyarrow.csv: in older Merlin images it supports only commas as separators.
    rows = pc.binary_join_element_wise(*text, separator, **empty_for_missing)
    rows = pc.binary_join_element_wise(rows, "", "\n")
    _, offsets, data = rows.buffers()
    ends = np.frombuffer(offsets, np.int32)[rows.offset : rows.offset + len(rows) + 1]
    return memoryview(data)[ends[0] : ends[-1]]


def _chunks(rows: int, size: int) -> Iterator[Words]:
    for start in range(0, rows, size):
        yield np.arange(start, min(start + size, rows), dtype=np.uint64)


@contextmanager
def _opened(path: Path, packed: bool) -> Iterator[IO[bytes]]:
    """Open a file to write; a gzip header without name and time makes equal logs equal files."""
    with path.open("wb") as file:
        if not packed:
            yield file
            return
        with gzip.GzipFile("", "wb", compresslevel=3, fileobj=file, mtime=0) as stream:
            yield stream


def _allocate(rows: int) -> tuple[npt.NDArray[np.int8], Floats]:
    """Allocate the clicks and probabilities of all rows."""
    try:
        return np.empty(rows, np.int8), np.empty(rows, np.float64)
    except (MemoryError, ValueError):  # too large for the memory, or for an array
        needed = 9 * rows / 2**30
        raise InputError(
            f"`rows` {rows} needs {needed:,.0f} GiB of memory; use fewer rows"
        ) from None


def auc_or_half(clicks: npt.NDArray[np.int8], probabilities: Floats) -> float:
    """Return the AUC, or 0.5 for a tiny log with only one class."""
    return roc_auc(clicks, probabilities) if 0 < clicks.sum() < clicks.size else 0.5
