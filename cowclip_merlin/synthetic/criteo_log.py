"""Generate a raw log in Criteo's format with known click probabilities.

Fields have Criteo's cardinalities scaled to the number of rows, and ids follow a Zipf-like
distribution. Values are missing about as often as in Criteo's log. The probability of a click is
the sigmoid of a true logit: an effect per id, second-order effects between fields, and effects of
the integers. So the best AUC that any model can reach is known. In a crossed log, C4 has a long
tail and four fields are crosses of others. So it has about as many ids per row and as many rare ids
as Criteo's.

Every number is a hash of (seed, stream, row) or (seed, field, id), so the log does not depend on
the chunk size. The id of a crossed field is a hash of the ids of its parents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cowclip_merlin.synthetic.log_writer import (
    PILOT_ROWS,
    GeneratedLog,
    LogChunk,
    LogSize,
    LogWriter,
    Words,
    draw_clicks,
    intercept_for,
    lines_of_columns,
    normal,
    power_law_ranks,
    random_words,
    sigmoid,
    uniform,
)
from cowclip_merlin.types import Floats, Integers

if TYPE_CHECKING:
    import pyarrow as pa

CRITEO_ROWS = 45_840_617
CARDINALITIES = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992,
    5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
MISSING_IDS = {
    3: 0.034, 4: 0.034, 6: 0.12, 12: 0.034, 16: 0.034, 19: 0.44, 20: 0.44, 21: 0.034,
    22: 0.76, 24: 0.034, 25: 0.44, 26: 0.44,
}  # fmt: skip
MISSING_INTEGERS = (
    0.45, 0.0, 0.21, 0.22, 0.026, 0.22, 0.043, 0.0005, 0.043, 0.45, 0.043, 0.76, 0.22,
)  # fmt: skip

# Streams of random numbers; add the index of the field or integer.
_IDS, _ABSENT, _VALUES, _ABSENT_VALUES, _EFFECTS, _LATENT, _CLICKS = (1000 * i for i in range(1, 8))

Effects = npt.NDArray[np.float32]

CLICK_RATE = 0.25
"""Share of clicks."""
ZIPF = 1.15
"""Exponent of the ids' frequencies by rank."""
UNIVERSE, TAIL_UNIVERSE = 0.6, 32.0
"""Ids in total, as a multiple of Criteo's ids per row; the same of fields with a long tail.

The ids of a crossed field are hashes, so with a small universe many of them would collide.
"""
FIRST_ORDER_STD, PAIRWISE_STD, INTEGER_STD = 0.27, 0.5, 0.05
"""Standard deviations: of an id's effect on the logit, per field; of all second-order effects
together; of one integer's effect."""
LATENT_DIM = 2
"""Length of the latent vectors behind the second-order effects."""
EXPONENTS: Mapping[int, float] = {4: 1.3}
"""Exponent of each field of a crossed log that has its own; most of its ids are rare."""
CROSSES: Mapping[int, tuple[int, ...]] = {3: (4, 22, 26), 12: (4, 26), 16: (4, 25), 21: (4, 9, 25)}
"""Parents of each crossed field of a crossed log. Fields are numbered from 1, as in C1 to C26.

In a sample of 8,000 rows of Criteo's log, too, an id of C3, C12, C21 or C16 determines that of C4.
"""


class GroundTruth:
    """True model of one log: computes ids, integers and click probabilities of any rows.

    A crossed log has as many ids per row as Criteo's at a million rows, most of them rare.
    `effects` and `latent` hold those of all ids by field; fields with a long tail have no table.
    """

    def __init__(self, rows: int, seed: int, *, crossed: bool = False) -> None:
        self.seed = seed
        self.crosses, self.exponents = (CROSSES, EXPONENTS) if crossed else ({}, {})
        self.sizes = [self._size(f, rows) for f in range(len(CARDINALITIES))]
        tables = [f for f in range(len(self.sizes)) if not self._has_long_tail(f)]
        self.effects = {f: self._effects(f, np.arange(self.sizes[f] + 1)) for f in tables}
        self.latent = {f: self._latents(f, np.arange(self.sizes[f] + 1)) for f in tables}
        self.intercept = 0.0
        self._calibrate()

    def _has_long_tail(self, field: int) -> bool:
        return field + 1 in self.crosses or field + 1 in self.exponents

    def _size(self, field: int, rows: int) -> int:
        ids = CARDINALITIES[field]
        if self._has_long_tail(field):
            return max(int(ids * TAIL_UNIVERSE * rows / CRITEO_ROWS), 1500)
        share = UNIVERSE * rows / CRITEO_ROWS
        return min(ids, max(int(ids * share), min(ids, 1500)))

    def _effects(self, field: int, ids: Integers) -> Effects:
        """Return the first-order effects of ids, [n]."""
        effects = normal(self.seed, _EFFECTS + field, ids)
        return (FIRST_ORDER_STD * effects).astype(np.float32)

    def _latents(self, field: int, ids: Integers) -> Effects:
        """Return the latent vectors of ids, [n, LATENT_DIM]."""
        dim, fields = LATENT_DIM, len(CARDINALITIES)
        # Scale so that the sum over all pairs of fields has the requested standard deviation.
        std = (PAIRWISE_STD**2 / (dim * fields * (fields - 1) / 2)) ** 0.25
        counter = ids[:, None] * dim + np.arange(dim)
        return (std * normal(self.seed, _LATENT + field, counter)).astype(np.float32)

    def effects_of(self, field: int, ids: Integers) -> Effects:
        """Return the first-order effects of ids, [n]; `field` counts from 0."""
        return self.effects[field][ids] if field in self.effects else self._effects(field, ids)

    def latents_of(self, field: int, ids: Integers) -> Effects:
        """Return the latent vectors of ids, [n, LATENT_DIM]; `field` counts from 0."""
        return self.latent[field][ids] if field in self.latent else self._latents(field, ids)

    def ids(self, rows: Words) -> Integers:
        """Return the ids, [n, 26]; 0 is a missing value.

        An id is its rank by frequency, 1 the most frequent, or in a crossed field a hash.
        """
        ids = np.zeros((len(rows), len(self.sizes)), np.int64)
        drawn = [f for f in range(len(self.sizes)) if f + 1 not in self.crosses]
        for f in drawn:
            ids[:, f] = self._with_missing(f, rows, self._drawn(f, rows))
        for number, parents in self.crosses.items():
            crossed = self._crossed(number - 1, ids, [parent - 1 for parent in parents])
            ids[:, number - 1] = self._with_missing(number - 1, rows, crossed)
        return ids

    def _drawn(self, field: int, rows: Words) -> Integers:
        u = uniform(self.seed, _IDS + field, rows)
        exponent = self.exponents.get(field + 1, ZIPF)
        return power_law_ranks(u, self.sizes[field], exponent)

    def _crossed(self, field: int, ids: Integers, parents: Sequence[int]) -> Integers:
        """Hash the parents' ids, which may be 0, to one id."""
        combined = np.zeros(len(ids), np.uint64)
        for parent in parents:  # a number for each combination
            combined *= np.uint64(self.sizes[parent] + 1)
            combined += ids[:, parent].astype(np.uint64)
        words = random_words(self.seed, _IDS + field, combined)
        return 1 + (words % np.uint64(self.sizes[field])).astype(np.int64)

    def _with_missing(self, field: int, rows: Words, ids: Integers) -> Integers:
        absent = uniform(self.seed, _ABSENT + field, rows) < MISSING_IDS.get(field + 1, 0.0)
        return np.where(absent, 0, ids)

    def integers(self, rows: Words) -> Integers:
        """Return heavy-tailed counts, [n, 13]; -1 is a missing value."""
        columns = []
        for j, share in enumerate(MISSING_INTEGERS):
            spread = 1 + 0.15 * (j % 7)
            values = np.exp(spread * normal(self.seed, _VALUES + j, rows) + 0.5).astype(np.int64)
            absent = uniform(self.seed, _ABSENT_VALUES + j, rows) < share
            columns.append(np.where(absent, -1, values))
        return np.stack(columns, axis=1)

    def probabilities(self, ids: Integers, integers: Integers) -> Floats:
        """Return the true probability of a click, [n]."""
        return self._sigmoid(*self._logit_parts(ids, integers))

    def _logit_parts(self, ids: Integers, integers: Integers) -> tuple[Effects, Effects, Floats]:
        """Return first-order effects, second-order effects, effects of the integers; each [n]."""
        fields = range(len(self.sizes))
        first = sum(self.effects_of(f, ids[:, f]) for f in fields)
        vectors = [self.latents_of(f, ids[:, f]) for f in fields]
        of_sum = np.square(sum(vectors)).sum(axis=1)
        sum_of = sum(np.square(v).sum(axis=1) for v in vectors)
        weights = INTEGER_STD * normal(self.seed, _EFFECTS + 900, np.arange(13))
        of_integers = np.log1p(np.maximum(integers, 0)) @ weights
        return first, 0.5 * (of_sum - sum_of), of_integers

    def _sigmoid(self, first: Effects, second: Effects, of_integers: Floats) -> Floats:
        # The order of the sum is part of the log: another one rounds differently, so clicks change.
        return sigmoid(self.intercept + first + second + of_integers)

    def clicks(self, rows: Words, probabilities: Floats) -> npt.NDArray[np.int8]:
        """Draw labels with these probabilities, [n]."""
        return draw_clicks(self.seed, _CLICKS, rows, probabilities)

    def _calibrate(self) -> None:
        """Set the intercept so that the mean probability is the click rate."""
        rows = np.arange(PILOT_ROWS, dtype=np.uint64)
        parts = self._logit_parts(self.ids(rows), self.integers(rows))

        def mean_with(intercept: float) -> float:
            self.intercept = intercept
            return self._sigmoid(*parts).mean()

        self.intercept = intercept_for(CLICK_RATE, mean_with)


@dataclass(frozen=True, kw_only=True)
class CriteoLog(GeneratedLog):
    """Facts about a log in Criteo's format; `crosses` has the parents of each crossed field."""

    crosses: dict[str, list[str]]


CROSS_NAMES = {f"C{f}": [f"C{parent}" for parent in by] for f, by in CROSSES.items()}
"""Crossed field -> its parents, by their names."""


def _hexadecimal(field: int, ranks: Integers) -> pa.Array:
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


def _lines(clicks: npt.NDArray[np.int8], ids: Integers, integers: Integers) -> memoryview:
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
    crossed: bool = False,
    overwrite: bool = False,
    chunk_rows: int = 1 << 16,
) -> CriteoLog:
    """Write a log and its statistics, `<name>.json` in the same folder.

    Memory: one chunk, 9 bytes per row (for the exact AUC) and 13 bytes per id of the universe. That
    has half an id per row or less. A crossed log takes 24 bytes per row more: four fields are
    crosses of others (`CROSSES`), and C4 has a long tail. The log does not depend on `chunk_rows`.

    Raises:
        InputError: if a number is out of range, or a file cannot be written.

    >>> import tempfile
    >>> log = generate(Path(tempfile.mkdtemp()) / "log.txt", rows=1000)
    >>> log.rows, log.bayes_auc > 0.7
    (1000, True)
    """
    writer = LogWriter(Path(path), LogSize(rows=rows, seed=seed), overwrite=overwrite)
    truth = GroundTruth(rows, seed, crossed=crossed)

    def make(chunk: Words) -> LogChunk:
        ids, integers = truth.ids(chunk), truth.integers(chunk)
        probabilities = truth.probabilities(ids, integers)
        clicks = truth.clicks(chunk, probabilities)
        return LogChunk(clicks, probabilities, ids, _lines(clicks, ids, integers))

    log = writer.write(make, truth.sizes, chunk_rows=chunk_rows)
    facts = CriteoLog(**asdict(log), crosses=CROSS_NAMES if crossed else {})
    writer.write_facts(facts)
    return facts
