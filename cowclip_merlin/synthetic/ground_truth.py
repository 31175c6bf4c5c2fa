"""Compute ids, integers and true click probabilities of a generated log.

Every number is a hash of (seed, stream, row) or (seed, field, id), so the rows can be computed in
any order with the same result.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]

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
_PILOT_ROWS = 50_000


@dataclass(frozen=True, kw_only=True)
class GroundTruthSettings:
    """Strengths of the effects in a generated log.

    Attributes:
        click_rate: share of clicks.
        zipf: exponent of the ids' frequencies by rank.
        universe: number of ids in total, as a multiple of Criteo's ids per row.
        first_order_std: standard deviation of an id's effect on the logit, per field.
        pairwise_std: standard deviation of all second-order effects together.
        latent_dim: length of the latent vectors behind the second-order effects.
        integer_std: standard deviation of one integer's effect.
    """

    click_rate: float = 0.25
    zipf: float = 1.15
    universe: float = 0.6
    first_order_std: float = 0.27
    pairwise_std: float = 0.5
    latent_dim: int = 2
    integer_std: float = 0.05


def _hash(seed: int, stream: int, counter: npt.ArrayLike) -> Words:
    """Hash each counter to 64 random bits (splitmix64)."""
    with np.errstate(over="ignore"):
        x = np.asarray(counter, np.uint64) + np.uint64(stream) * np.uint64(0xD1B54A32D192ED03)
        x = (x ^ np.uint64(seed)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
        return x ^ (x >> np.uint64(31))


def _uniform(seed: int, stream: int, counter: npt.ArrayLike) -> Floats:
    """Return uniform random numbers in (0, 1)."""
    return ((_hash(seed, stream, counter) >> np.uint64(11)).astype(np.float64) + 0.5) / 2**53


def _normal(seed: int, stream: int, counter: npt.ArrayLike) -> Floats:
    """Return standard normal random numbers (Box and Muller)."""
    radius = np.sqrt(-2 * np.log(_uniform(seed, stream, counter)))
    return radius * np.cos(2 * np.pi * _uniform(seed, stream + 500, counter))


class GroundTruth:
    """True model of one log: computes ids, integers and click probabilities of any rows."""

    def __init__(self, rows: int, seed: int, settings: GroundTruthSettings) -> None:
        self.seed, self.settings = seed, settings
        share = settings.universe * rows / CRITEO_ROWS
        self.sizes = [min(c, max(int(c * share), min(c, 1500))) for c in CARDINALITIES]
        self.effects = [self._effects(f, size) for f, size in enumerate(self.sizes)]
        self.latent = [self._latents(f, size) for f, size in enumerate(self.sizes)]
        self.intercept = 0.0
        self._calibrate()

    def _effects(self, field: int, size: int) -> npt.NDArray[np.float32]:
        effects = _normal(self.seed, _EFFECTS + field, np.arange(size + 1))
        return (self.settings.first_order_std * effects).astype(np.float32)

    def _latents(self, field: int, size: int) -> npt.NDArray[np.float32]:
        dim, fields = self.settings.latent_dim, len(CARDINALITIES)
        # Scale so that the sum over all pairs of fields has the requested standard deviation.
        std = (self.settings.pairwise_std**2 / (dim * fields * (fields - 1) / 2)) ** 0.25
        counter = np.arange((size + 1) * dim)
        latent = std * _normal(self.seed, _LATENT + field, counter)
        return latent.reshape(size + 1, dim).astype(np.float32)

    def ids(self, rows: Words) -> npt.NDArray[np.int64]:
        """Return the ranks of the ids, [n, 26]; 0 is a missing value, 1 the most frequent id."""
        columns = [self._field_ids(f, size, rows) for f, size in enumerate(self.sizes)]
        return np.stack(columns, axis=1)

    def _field_ids(self, field: int, size: int, rows: Words) -> npt.NDArray[np.int64]:
        u, tail = _uniform(self.seed, _IDS + field, rows), 1 - self.settings.zipf
        # Inverse of the distribution function of a continuous power law on [1, size + 1).
        rank = ((((size + 1.0) ** tail - 1) * u + 1) ** (1 / tail)).astype(np.int64)
        absent = _uniform(self.seed, _ABSENT + field, rows) < MISSING_IDS.get(field + 1, 0.0)
        return np.where(absent, 0, np.clip(rank, 1, size))

    def integers(self, rows: Words) -> npt.NDArray[np.int64]:
        """Return heavy-tailed counts, [n, 13]; -1 is a missing value."""
        columns = []
        for j, share in enumerate(MISSING_INTEGERS):
            spread = 1 + 0.15 * (j % 7)
            values = np.exp(spread * _normal(self.seed, _VALUES + j, rows) + 0.5).astype(np.int64)
            absent = _uniform(self.seed, _ABSENT_VALUES + j, rows) < share
            columns.append(np.where(absent, -1, values))
        return np.stack(columns, axis=1)

    def probabilities(self, ids: npt.NDArray[np.int64], integers: npt.NDArray[np.int64]) -> Floats:
        """Return the true probability of a click, [n]."""
        return self._sigmoid(*self._logit_parts(ids, integers))

    def _logit_parts(
        self, ids: npt.NDArray[np.int64], integers: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], Floats]:
        """Return first-order effects, second-order effects, effects of the integers; each [n]."""
        first = sum(e[ids[:, f]] for f, e in enumerate(self.effects))
        vectors = [z[ids[:, f]] for f, z in enumerate(self.latent)]
        of_sum = np.square(sum(vectors)).sum(axis=1)
        sum_of = sum(np.square(v).sum(axis=1) for v in vectors)
        weights = self.settings.integer_std * _normal(self.seed, _EFFECTS + 900, np.arange(13))
        of_integers = np.log1p(np.maximum(integers, 0)) @ weights
        return first, 0.5 * (of_sum - sum_of), of_integers

    def _sigmoid(
        self,
        first: npt.NDArray[np.float32],
        second: npt.NDArray[np.float32],
        of_integers: Floats,
    ) -> Floats:
        # The order of the sum is part of the log: another one rounds differently, so clicks change.
        return 1 / (1 + np.exp(-(self.intercept + first + second + of_integers)))

    def clicks(self, rows: Words, probabilities: Floats) -> npt.NDArray[np.int8]:
        """Draw labels with these probabilities, [n]."""
        return (_uniform(self.seed, _CLICKS, rows) < probabilities).astype(np.int8)

    def _calibrate(self) -> None:
        """Set the intercept so that the mean probability is the click rate."""
        rows = np.arange(_PILOT_ROWS, dtype=np.uint64)
        parts = self._logit_parts(self.ids(rows), self.integers(rows))
        low, high = -20.0, 20.0
        for _ in range(40):
            self.intercept = (low + high) / 2
            too_many = self._sigmoid(*parts).mean() > self.settings.click_rate
            low, high = (low, self.intercept) if too_many else (self.intercept, high)
