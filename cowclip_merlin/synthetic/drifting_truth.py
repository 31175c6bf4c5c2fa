"""Compute the true click probabilities of a log with drifting effects and changing items.

Every number is a hash of (seed, stream, row) or (seed, field, id), as in `ground_truth`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cowclip_merlin.synthetic.random_numbers import (
    PILOT_ROWS,
    Words,
    draw_clicks,
    intercept_for,
    normal,
    power_law_ranks,
    random_words,
    sigmoid,
    uniform,
)
from cowclip_merlin.types import Floats, Integers

DAY = 86_400
START = 1_767_225_600
"""2026-01-01 00:00 UTC, the time of the first row."""


@dataclass(frozen=True)
class DriftingField:
    """One categorical column.

    Attributes:
        name: name of the column.
        std: standard deviation of an id's effect on the logit, at any time.
        period: days after which an effect repeats; after a quarter of them it is uncorrelated.
        missing: share of missing values.
    """

    name: str
    std: float
    period: float
    missing: float = 0.0


FIELDS = (
    DriftingField("user", 0.4, 60),
    DriftingField("item", 0.8, 8),
    DriftingField("category", 0.4, 16),
    DriftingField("site", 0.4, 24, missing=0.03),
    DriftingField("device", 0.2, 40),
    DriftingField("hour", 0.2, 40),
)
USER, ITEM, CATEGORY, SITE, DEVICE, HOUR = range(len(FIELDS))
CATEGORIES, SITES, DEVICES, HOURS = 40, 500, 6, 24
ITEM_LIFE = 4
"""Number of days after its first day on which an item can occur."""
MISSING_PRICES = 0.1

# Streams of random numbers; a field adds its index.
_IDS, _ABSENT, _AGES, _PRICES, _COSINE, _SINE, _LATENT, _CLICKS = (1000 * i for i in range(11, 19))


@dataclass(frozen=True, kw_only=True)
class DriftSettings:
    """Strengths of the effects of a drifting log, and the distributions of its ids.

    Attributes:
        click_rate: share of clicks.
        zipf: exponent of the frequencies by rank, for users, sites, and the items of one day.
        mean_item_age: mean in days of an exponential distribution, truncated at `ITEM_LIFE`.
        pairwise_std: standard deviation of the effect of a user and an item together.
        latent_dim: length of the latent vectors behind the pairwise effect.
        price_weight: effect of log(1 + price).
    """

    click_rate: float = 0.2
    zipf: float = 1.15
    mean_item_age: float = 1.0
    pairwise_std: float = 0.5
    latent_dim: int = 2
    price_weight: float = -0.15


class DriftingTruth:
    """The true model of one log: times, ids, prices and click probabilities of any rows.

    Args:
        rows: number of rows of the log.
        days: number of days that the log covers.
        seed: seed of all random numbers.
        settings: strengths of the effects.

    Attributes:
        new_items: number of new items on each day.
        sizes: number of ids in each field.
    """

    def __init__(self, rows: int, days: int, seed: int, settings: DriftSettings) -> None:
        self.rows, self.days, self.seed, self.settings = rows, days, seed, settings
        users = max(100, rows // 30)
        self.new_items = max(20, rows // (120 * days))
        items = self.new_items * (days + ITEM_LIFE)
        self.sizes = (users, items, CATEGORIES, SITES, DEVICES, HOURS)
        self.latent = [self._latents(field) for field in (USER, ITEM)]
        self.intercept = 0.0
        self._calibrate()

    def _latents(self, field: int) -> npt.NDArray[np.float64]:
        dim, size = self.settings.latent_dim, self.sizes[field]
        std = (self.settings.pairwise_std**2 / dim) ** 0.25
        counter = np.arange((size + 1) * dim)
        return std * normal(self.seed, _LATENT + field, counter).reshape(size + 1, dim)

    def times(self, rows: Words) -> Integers:
        """Return seconds since 1970, evenly spread over the days, [n]."""
        span = np.uint64(self.days * DAY)
        return START + (rows * span // np.uint64(self.rows)).astype(np.int64)

    def ids(self, rows: Words) -> Integers:
        """Return ids, counted from 1, [n, 6]; 0 marks a missing value."""
        items = self._items(rows)
        columns = [
            self._ranked(USER, rows),
            items,
            self._categories(items),
            self._ranked(SITE, rows),
            1 + (uniform(self.seed, _IDS + DEVICE, rows) * DEVICES).astype(np.int64),
            1 + self.times(rows) % DAY // 3600,
        ]
        for f, field in enumerate(FIELDS):
            if field.missing:
                absent = uniform(self.seed, _ABSENT + f, rows) < field.missing
                columns[f] = np.where(absent, 0, columns[f])
        return np.stack(columns, axis=1)

    def _ranked(self, field: int, rows: Words) -> Integers:
        u = uniform(self.seed, _IDS + field, rows)
        return power_law_ranks(u, self.sizes[field], self.settings.zipf)

    def _items(self, rows: Words) -> Integers:
        """Return items of an earlier day, at a random age; each day adds new items."""
        mean, days = self.settings.mean_item_age, (self.times(rows) - START) / DAY
        kept = 1 - np.exp(-ITEM_LIFE / mean)
        age = -mean * np.log(1 - kept * uniform(self.seed, _AGES, rows))
        first_day = np.maximum(np.floor(days - age).astype(np.int64) + ITEM_LIFE, 0)
        u = uniform(self.seed, _IDS + ITEM, rows)
        return first_day * self.new_items + power_law_ranks(u, self.new_items, self.settings.zipf)

    def _categories(self, items: Integers) -> Integers:
        words = random_words(self.seed, _IDS + CATEGORY, items)
        return 1 + (words % np.uint64(CATEGORIES)).astype(np.int64)

    def prices(self, rows: Words) -> Integers:
        """Return prices in whole units, [n]; -1 marks a missing price."""
        values = np.exp(2 + normal(self.seed, _PRICES, rows)).astype(np.int64)
        absent = uniform(self.seed, _ABSENT + 900, rows) < MISSING_PRICES
        return np.where(absent, -1, values)

    def probabilities(self, times: Integers, ids: Integers, prices: Integers) -> Floats:
        """Return the true click probabilities with the effects at these times, [n]."""
        return sigmoid(self.intercept + self._logits(times, ids, prices))

    def _logits(self, times: Integers, ids: Integers, prices: Integers) -> Floats:
        days = (times - START) / DAY
        logits = self.settings.price_weight * np.log1p(np.maximum(prices, 0))
        for f in range(len(FIELDS)):
            logits = logits + self.effects(f, ids[:, f], days)
        for j in range(self.settings.latent_dim):
            users, items = (latent[:, j] for latent in self.latent)
            logits = logits + users[ids[:, USER]] * items[ids[:, ITEM]]
        return logits

    def effects(self, field: int, ids: Integers, days: Floats) -> Floats:
        """Return the effects of a field's ids at these times, in days since the start, [n]."""
        angle = 2 * np.pi * days / FIELDS[field].period
        cosine = normal(self.seed, _COSINE + field, ids)
        sine = normal(self.seed, _SINE + field, ids)
        return FIELDS[field].std * (cosine * np.cos(angle) + sine * np.sin(angle))

    def clicks(self, rows: Words, probabilities: Floats) -> npt.NDArray[np.int8]:
        """Draw labels with these probabilities, [n]."""
        return draw_clicks(self.seed, _CLICKS, rows, probabilities)

    def _calibrate(self) -> None:
        """Set the intercept so that the mean probability is the click rate."""
        pilot = np.arange(0, self.rows, max(1, self.rows // PILOT_ROWS), dtype=np.uint64)
        logits = self._logits(self.times(pilot), self.ids(pilot), self.prices(pilot))
        self.intercept = intercept_for(
            self.settings.click_rate,
            lambda intercept: float(sigmoid(intercept + logits).mean()),
        )
