"""Generate a raw log in Criteo's format with known click probabilities.

Fields have Criteo's cardinalities scaled to the number of rows, and ids follow a Zipf-like
distribution. Values are missing about as often as in Criteo's log. The probability of a click is
the sigmoid of a true logit: an effect per id, second-order effects between fields, and effects of
the integers. So the best AUC that any model can reach is known.

Every number is a hash of (seed, stream, row) or (seed, field, id), so the log does not depend on
the chunk size.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from cowclip_merlin.errors import InputError
from cowclip_merlin.metrics import log_loss, roc_auc
from cowclip_merlin.synthetic.ground_truth import Floats, GroundTruth, GroundTruthSettings, Words
from cowclip_merlin.system.files import atomic_write, check_writable, write_json


@dataclass(frozen=True, kw_only=True)
class GeneratedLog:
    """Statistics of a generated log.

    Attributes:
        rows: number of rows.
        click_rate: share of clicks.
        distinct_ids: number of distinct values, summed over all categorical columns.
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


def _hexadecimal(field: int, ranks: npt.NDArray[np.int64]) -> Any:
    """Map each rank to 8 hexadecimal digits, as in Criteo's log; rank 0 becomes empty."""
    import pyarrow as pa
    import pyarrow.compute as pc

    x = ranks.astype(np.uint32)
    with np.errstate(over="ignore"):
        x = x + np.uint32(0x9E3779B9) * np.uint32(field + 1)
        for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
            x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
        x ^= x >> np.uint32(16)
    digits = np.frombuffer(bytes(range(256)).hex().encode(), "S2")
    text = digits[x.astype(">u4").view(np.uint8).reshape(-1, 4)].tobytes()
    offsets = np.arange(len(x) + 1, dtype=np.int32) * 8
    column = pa.StringArray.from_buffers(len(x), pa.py_buffer(offsets), pa.py_buffer(text))
    return pc.if_else(pa.array(ranks > 0), column, pa.scalar(None, pa.string()))


def _lines(
    clicks: npt.NDArray[np.int8], ids: npt.NDArray[np.int64], integers: npt.NDArray[np.int64]
) -> memoryview:
    """Format the rows as text: columns separated by tabs, missing values empty."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = [pa.array(clicks).cast(pa.string())]
    columns += [pa.array(x, mask=x < 0).cast(pa.string()) for x in integers.T]
    columns += [_hexadecimal(f, ids[:, f]) for f in range(ids.shape[1])]
    empty_for_missing = {"null_handling": "replace", "null_replacement": ""}
    # Not pyarrow.csv: in older Merlin images it supports only commas.
    rows = pc.binary_join_element_wise(*columns, "\t", **empty_for_missing)
    rows = pc.binary_join_element_wise(rows, "", "\n")
    _, offsets, text = rows.buffers()
    ends = np.frombuffer(offsets, np.int32)[rows.offset : rows.offset + len(rows) + 1]
    return memoryview(text)[ends[0] : ends[-1]]


def _chunks(rows: int, size: int) -> Iterator[Words]:
    for start in range(0, rows, size):
        yield np.arange(start, min(start + size, rows), dtype=np.uint64)


def generate(
    path: str | Path,
    *,
    rows: int,
    seed: int = 1234,
    ground_truth: GroundTruthSettings | None = None,
    overwrite: bool = False,
    chunk_rows: int = 1 << 16,
) -> GeneratedLog:
    """Write a log and its statistics, `<name>.json` in the same folder.

    Memory: one chunk, 9 bytes per row (for the exact AUC) and 13 bytes per id of the universe.

    Args:
        path: file to write; compressed if the name ends in .gz.
        rows: number of rows.
        seed: seed of all random numbers.
        ground_truth: sizes of the effects.
        overwrite: replace existing files.
        chunk_rows: rows generated at a time; the log does not depend on it.

    Raises:
        InputError: if `rows` is not positive or needs too much memory, the seed is not within
            64 bits, `path` is a folder, its parent folder is missing, or a file exists and
            `overwrite` is false.

    >>> import tempfile
    >>> log = generate(Path(tempfile.mkdtemp()) / "log.txt", rows=1000)
    >>> log.rows, log.bayes_auc > 0.7
    (1000, True)
    """
    from tqdm import tqdm

    path = Path(path)
    _check_arguments(path, rows, seed, overwrite=overwrite)
    clicks, probabilities = _allocate(rows)
    truth = GroundTruth(rows, seed, ground_truth or GroundTruthSettings())
    seen = [np.zeros(size + 1, bool) for size in truth.sizes]
    bar = tqdm(total=rows, desc=f"generate {path.name}", unit="row", disable=None, leave=False)
    packed = path.suffix == ".gz"
    with atomic_write(path) as temporary, bar, _opened(temporary, compressed=packed) as file:
        for chunk in _chunks(rows, chunk_rows):
            ids, integers = truth.ids(chunk), truth.integers(chunk)
            at = slice(int(chunk[0]), int(chunk[-1]) + 1)
            probabilities[at] = truth.probabilities(ids, integers)
            clicks[at] = truth.clicks(chunk, probabilities[at])
            file.write(_lines(clicks[at], ids, integers))
            for f, ever in enumerate(seen):
                ever[ids[:, f]] = True
            bar.update(len(chunk))
    log = GeneratedLog(
        rows=rows,
        click_rate=float(clicks.mean()),
        distinct_ids=int(sum(ever[1:].sum() for ever in seen)),
        bayes_auc=_auc_or_half(clicks, probabilities),
        bayes_log_loss=log_loss(clicks, probabilities),
        seed=seed,
    )
    write_json(_facts_path(path), asdict(log))
    return log


def _facts_path(path: Path) -> Path:
    return path.with_name(path.name + ".json")


@contextmanager
def _opened(path: Path, *, compressed: bool) -> Iterator[IO[bytes]]:
    """Open a file to write; omit name and time from .gz files, so that equal logs are equal."""
    with path.open("wb") as file:
        if not compressed:
            yield file
            return
        with gzip.GzipFile("", "wb", compresslevel=3, fileobj=file, mtime=0) as packed:
            yield packed


def _check_arguments(path: Path, rows: int, seed: int, *, overwrite: bool) -> None:
    if rows < 1:
        raise InputError(f"--rows is {rows}; it must be at least 1")
    if not 0 <= seed < 2**64:
        raise InputError(f"--seed is {seed}; it must be between 0 and 2**64 - 1")
    for file in (path, _facts_path(path)):
        check_writable(file, overwrite=overwrite)


def _allocate(rows: int) -> tuple[npt.NDArray[np.int8], Floats]:
    """Allocate the arrays for the clicks and probabilities of all rows."""
    try:
        return np.empty(rows, np.int8), np.empty(rows, np.float64)
    except (MemoryError, ValueError):  # more than the machine has, or than an array can have
        needed = 9 * rows / 2**30
        raise InputError(
            f"--rows {rows} needs {needed:,.0f} GiB of memory; use fewer rows"
        ) from None


def _auc_or_half(clicks: npt.NDArray[np.int8], probabilities: Floats) -> float:
    """Return the AUC, or 0.5 if a tiny log has only one class."""
    return roc_auc(clicks, probabilities) if 0 < clicks.sum() < clicks.size else 0.5
