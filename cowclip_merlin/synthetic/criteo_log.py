"""Generate a raw log in Criteo's format with known click probabilities.

Fields have Criteo's cardinalities scaled to the number of rows, and ids follow a Zipf-like
distribution. Values are missing about as often as in Criteo's log. The probability of a click is
the sigmoid of a true logit: an effect per id, second-order effects between fields, and effects of
the integers. So the best AUC that any model can reach is known. With the settings `CROSSED`, C4
has a long tail and four fields are crosses, so the log is near Criteo's ids per row and rare ids.

Every number is a hash of (seed, stream, row) or (seed, field, id), so the log does not depend on
the chunk size.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cowclip_merlin.synthetic.ground_truth import GroundTruth, GroundTruthSettings
from cowclip_merlin.synthetic.log_writer import (
    GeneratedLog,
    LogChunk,
    LogSize,
    LogWriter,
    lines_of_columns,
)
from cowclip_merlin.synthetic.random_numbers import Words

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, kw_only=True)
class CriteoLog(GeneratedLog):
    """Facts about a generated log in Criteo's format.

    Attributes:
        crosses: names of the parents of each crossed field; empty if there is none.
    """

    crosses: dict[str, list[str]]


def cross_names(settings: GroundTruthSettings) -> dict[str, list[str]]:
    """Return the names of the parents of each crossed field.

    >>> cross_names(GroundTruthSettings(crosses={4: (5, 10)}))
    {'C4': ['C5', 'C10']}
    """
    return {f"C{f}": [f"C{parent}" for parent in by] for f, by in settings.crosses.items()}


def _hexadecimal(field: int, ranks: npt.NDArray[np.int64]) -> pa.Array:
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

    columns = [pa.array(clicks)]
    columns += [pa.array(x, mask=x < 0) for x in integers.T]
    columns += [_hexadecimal(f, ids[:, f]) for f in range(ids.shape[1])]
    return lines_of_columns(columns, separator="\t")


def generate(
    path: str | Path,
    *,
    rows: int,
    seed: int = 1234,
    ground_truth: GroundTruthSettings | None = None,
    overwrite: bool = False,
    chunk_rows: int = 1 << 16,
) -> CriteoLog:
    """Write a log and its statistics, `<name>.json` in the same folder.

    Memory: one chunk, 9 bytes per row (for the exact AUC) and 13 bytes per id of the universe,
    which has half an id per row or less. With `CROSSED`, 24 bytes per row more.

    Args:
        path: file to write; compressed if the name ends in .gz.
        rows: number of rows.
        seed: seed of all random numbers.
        ground_truth: sizes of the effects, and distributions of the ids.
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
    writer = LogWriter(Path(path), LogSize(rows=rows, seed=seed), overwrite=overwrite)
    settings = ground_truth or GroundTruthSettings()
    truth = GroundTruth(rows, seed, settings)

    def make(chunk: Words) -> LogChunk:
        ids, integers = truth.ids(chunk), truth.integers(chunk)
        probabilities = truth.probabilities(ids, integers)
        clicks = truth.clicks(chunk, probabilities)
        return LogChunk(clicks, probabilities, ids, _lines(clicks, ids, integers))

    log = writer.write(make, truth.sizes, chunk_rows=chunk_rows)
    facts = CriteoLog(**asdict(log), crosses=cross_names(settings))
    writer.write_facts(facts)
    return facts
