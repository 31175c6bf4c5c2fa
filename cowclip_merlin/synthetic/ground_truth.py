"""Compute ids, integers and true click probabilities of a generated log.

Every number is a hash of (seed, stream, row) or (seed, field, id), so the rows can be computed in
any order with the same result.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cowclip_merlin.synthetic.random_numbers import (
    PILOT_ROWS,
    Floats,
    Words,
    draw_clicks,
    intercept_for,
    normal,
    power_law_ranks,
    sigmoid,
    uniform,
)

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
        effects = normal(self.seed, _EFFECTS + field, np.arange(size + 1))
        return (self.settings.first_order_std * effects).astype(np.float32)

    def _latents(self, field: int, size: int) -> npt.NDArray[np.float32]:
        dim, fields = self.settings.latent_dim, len(CARDINALITIES)
        # Scale so that the sum over all pairs of fields has the requested standard deviation.
        std = (self.settings.pairwise_std**2 / (dim * fields * (fields - 1) / 2)) ** 0.25
        counter = np.arange((size + 1) * dim)
        latent = std * normal(self.seed, _LATENT + field, counter)
        return latent.reshape(size + 1, dim).astype(np.float32)

    def ids(self, rows: Words) -> npt.NDArray[np.int64]:
        """Return the ranks of the ids, [n, 26]; 0 is a missing value, 1 the most frequent id."""
        columns = [self._field_ids(f, size, rows) for f, size in enumerate(self.sizes)]
        return np.stack(columns, axis=1)

    def _field_ids(self, field: int, size: int, rows: Words) -> npt.NDArray[np.int64]:
        u = uniform(self.seed, _IDS + field, rows)
        rank = power_law_ranks(u, size, self.settings.zipf)
        absent = uniform(self.seed, _ABSENT + field, rows) < MISSING_IDS.get(field + 1, 0.0)
        return np.where(absent, 0, rank)

    def integers(self, rows: Words) -> npt.NDArray[np.int64]:
        """Return heavy-tailed counts, [n, 13]; -1 is a missing value."""
        columns = []
        for j, share in enumerate(MISSING_INTEGERS):
            spread = 1 + 0.15 * (j % 7)
            values = np.exp(spread * normal(self.seed, _VALUES + j, rows) + 0.5).astype(np.int64)
            absent = uniform(self.seed, _ABSENT_VALUES + j, rows) < share
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
        weights = self.settings.integer_std * normal(self.seed, _EFFECTS + 900, np.arange(13))
        of_integers = np.log1p(np.maximum(integers, 0)) @ weights
        return first, 0.5 * (of_sum - sum_of), of_integers

    def _sigmoid(
        self,
        first: npt.NDArray[np.float32],
        second: npt.NDArray[np.float32],
        of_integers: Floats,
    ) -> Floats:
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

        self.intercept = intercept_for(self.settings.click_rate, mean_with)
