"""What the generated logs share: random numbers, and a writer of a log and the facts about it.

The random numbers depend only on seed, stream and counter, so their order is arbitrary.
"""

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
from cowclip_merlin.system.console import progress
from cowclip_merlin.system.files import atomic_write, check_writable, write_json
from cowclip_merlin.types import ArrowColumn, Floats, Integers

Words = npt.NDArray[np.uint64]

PILOT_ROWS = 50_000
"""Rows whose mean probability sets the intercept of a log."""


def random_words(seed: int, stream: int, counter: npt.ArrayLike) -> Words:
    """Return 64 random bits for each counter (splitmix64)."""
    with np.errstate(over="ignore"):
        x = np.asarray(counter, np.uint64) + np.uint64(stream) * np.uint64(0xD1B54A32D192ED03)
        x = (x ^ np.uint64(seed)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
        return x ^ (x >> np.uint64(31))


def uniform(seed: int, stream: int, counter: npt.ArrayLike) -> Floats:
    """Return uniform numbers in (0, 1)."""
    words = random_words(seed, stream, counter)
    return ((words >> np.uint64(11)).astype(np.float64) + 0.5) / 2**53


def normal(seed: int, stream: int, counter: npt.ArrayLike) -> Floats:
    """Return normal numbers (Box and Muller); the streams `stream` and `stream + 500` are used."""
    radius = np.sqrt(-2 * np.log(uniform(seed, stream, counter)))
    return radius * np.cos(2 * np.pi * uniform(seed, stream + 500, counter))


def power_law_ranks(u: Floats, size: int, exponent: float) -> Integers:
    """Map uniform numbers to ranks from 1 to `size`, with frequencies rank^-exponent (not 1)."""
    tail = 1 - exponent
    # Inverse of the distribution function of a continuous power law on [1, size + 1).
    rank = ((((size + 1.0) ** tail - 1) * u + 1) ** (1 / tail)).astype(np.int64)
    return np.clip(rank, 1, size)


def sigmoid(logits: Floats) -> Floats:
    """Return the probabilities of these logits."""
    return 1 / (1 + np.exp(-logits))


def draw_clicks(seed: int, stream: int, rows: Words, probabilities: Floats) -> npt.NDArray[np.int8]:
    """Draw labels with these probabilities, [n]."""
    return (uniform(seed, stream, rows) < probabilities).astype(np.int8)


def intercept_for(rate: float, mean_with: Callable[[float], float]) -> float:
    """Find by bisection the intercept at which `mean_with(intercept)` equals the rate."""
    low, high = -20.0, 20.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if mean_with(middle) > rate else (middle, high)
    return middle


@dataclass(frozen=True, kw_only=True)
class GeneratedLog:
    """Facts about a generated log."""

    rows: int
    click_rate: float
    distinct_ids: int  # in all categorical columns together
    bayes_auc: float  # of the true probabilities, the best possible
    bayes_log_loss: float  # of the true probabilities, in nats
    seed: int


@dataclass(frozen=True)
class LogChunk:
    """Some rows of a log."""

    clicks: npt.NDArray[np.int8]  # [n]
    probabilities: Floats  # the true ones, [n]
    ids: Integers  # of each categorical column, counted from 1, [n, fields]; 0: missing
    text: memoryview  # the lines of the file


@dataclass(frozen=True, kw_only=True)
class LogSize(Settings):
    """Size and seed of a generated log."""

    rows: int = option(help="number of rows", at_least=1)
    seed: int = option(1234, "random seed of the log", at_least=0, below=2**64)


class LogWriter:
    """Writes one log, and at last the facts about it to `<name>.json` in the same folder.

    Its arrays `clicks` and `probabilities` of all rows are filled while the rows are written.
    """

    def __init__(self, path: Path, size: LogSize, *, overwrite: bool) -> None:
        if path.suffix == ".parquet":
            raise InputError(f"{path}: the log is text; name it .csv, .tsv, or .csv.gz")
        check_writable(path, overwrite=overwrite)
        self.path, self.rows, self.seed = path, size.rows, size.seed
        self.facts_path = path.with_name(path.name + ".json")
        check_writable(self.facts_path, overwrite=overwrite)
        try:
            self.clicks, self.probabilities = np.empty(size.rows, np.int8), np.empty(size.rows)
        except (MemoryError, ValueError):  # too large for the memory, or for an array
            needed = 9 * size.rows / 2**30
            raise InputError(
                f"`rows` {size.rows} needs {needed:,.0f} GiB of memory; use fewer rows"
            ) from None

    def write(
        self,
        make: Callable[[Words], LogChunk],
        sizes: Sequence[int],
        *,
        chunk_rows: int,
        header: bytes = b"",
    ) -> GeneratedLog:
        """Write all rows; first remove the facts about an earlier log of this name.

        `make` maps row numbers to these rows; `sizes` are the ids of each categorical column.
        """
        name, rows = self.path.name, self.rows
        seen = [np.zeros(size + 1, bool) for size in sizes]
        bar = progress(rows, desc=f"generate {name}", unit="row")
        packed = self.path.suffix == ".gz"
        with atomic_write(self.path) as temporary, bar, _opened(temporary, packed) as file:
            file.write(header)
            for start in range(0, rows, chunk_rows):
                numbers = np.arange(start, min(start + chunk_rows, rows), dtype=np.uint64)
                chunk = make(numbers)
                where = slice(start, start + len(numbers))
                self.clicks[where], self.probabilities[where] = chunk.clicks, chunk.probabilities
                file.write(chunk.text)
                for f, ever in enumerate(seen):
                    ever[chunk.ids[:, f]] = True
                bar.update(len(numbers))
            self.facts_path.unlink(missing_ok=True)
        return GeneratedLog(
            rows=rows,
            click_rate=float(self.clicks.mean()),
            distinct_ids=sum(int(ever[1:].sum()) for ever in seen),
            bayes_auc=auc_or_half(self.clicks, self.probabilities),
            bayes_log_loss=log_loss(self.clicks, self.probabilities),
            seed=self.seed,
        )

    def write_facts(self, facts: GeneratedLog) -> None:
        """Write the facts about the log; call this last."""
        write_json(self.facts_path, asdict(facts))


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


@contextmanager
def _opened(path: Path, packed: bool) -> Iterator[IO[bytes]]:
    """Open a file to write; a gzip header without name and time makes equal logs equal files."""
    with path.open("wb") as file:
        if not packed:
            yield file
            return
        with gzip.GzipFile("", "wb", compresslevel=3, fileobj=file, mtime=0) as stream:
            yield stream


def auc_or_half(clicks: npt.NDArray[np.int8], probabilities: Floats) -> float:
    """Return the AUC, or 0.5 for a tiny log with only one class."""
    return roc_auc(clicks, probabilities) if 0 < clicks.sum() < clicks.size else 0.5
