"""Generate a log of events with times, drifting effects and a changing set of items.

It is for online training: a model that stops learning gets worse, because effects change and new
items appear every day. The true probability of every click is known, and so is the best AUC.

Every number is a hash of (seed, stream, row) or (seed, field, id), as in `criteo_log`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cowclip_merlin.settings import option
from cowclip_merlin.synthetic.log_writer import (
    PILOT_ROWS,
    GeneratedLog,
    LogChunk,
    LogSize,
    LogWriter,
    Words,
    auc_or_half,
    draw_clicks,
    intercept_for,
    lines_of_columns,
    normal,
    power_law_ranks,
    random_words,
    sigmoid,
    uniform,
)
from cowclip_merlin.system.files import atomic_write, check_writable
from cowclip_merlin.types import Floats, Integers
from cowclip_merlin.workflows.raw.log_format import separator_of

if TYPE_CHECKING:
    import pyarrow as pa

DAY = 86_400
START = 1_767_225_600
"""2026-01-01 00:00 UTC, the time of the first row."""


@dataclass(frozen=True)
class DriftingField:
    """One categorical column."""

    name: str
    std: float  # of an id's effect on the logit, at any time
    period: float  # days after which an effect repeats; after a quarter it is uncorrelated
    missing: float = 0.0  # share of values


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

CLICK_RATE = 0.2
"""Share of clicks."""
ZIPF = 1.15
"""Exponent of the frequencies by rank, for users, sites, and the items of one day."""
MEAN_ITEM_AGE = 1.0
"""Mean in days of an exponential distribution, truncated at `ITEM_LIFE`."""
PAIRWISE_STD, LATENT_DIM = 0.5, 2
"""Standard deviation of the effect of a user and an item together; its latent vectors' length."""
PRICE_WEIGHT = -0.15
"""Effect of log(1 + price)."""


class DriftingTruth:
    """The true model of one log: times, ids, prices and click probabilities of any rows.

    Each day has `new_items` new items; `sizes` are the ids of each field.
    """

    def __init__(self, rows: int, days: int, seed: int) -> None:
        self.rows, self.days, self.seed = rows, days, seed
        users = max(100, rows // 30)
        self.new_items = max(20, rows // (120 * days))
        items = self.new_items * (days + ITEM_LIFE)
        self.sizes = (users, items, CATEGORIES, SITES, DEVICES, HOURS)
        self.latent = [self._latents(field) for field in (USER, ITEM)]
        self.intercept = 0.0
        self._calibrate()

    def _latents(self, field: int) -> npt.NDArray[np.float64]:
        dim, size = LATENT_DIM, self.sizes[field]
        std = (PAIRWISE_STD**2 / dim) ** 0.25
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
        return power_law_ranks(u, self.sizes[field], ZIPF)

    def _items(self, rows: Words) -> Integers:
        """Return items of an earlier day, at a random age; each day adds new items."""
        days = (self.times(rows) - START) / DAY
        kept = 1 - np.exp(-ITEM_LIFE / MEAN_ITEM_AGE)
        age = -MEAN_ITEM_AGE * np.log(1 - kept * uniform(self.seed, _AGES, rows))
        first_day = np.maximum(np.floor(days - age).astype(np.int64) + ITEM_LIFE, 0)
        u = uniform(self.seed, _IDS + ITEM, rows)
        return first_day * self.new_items + power_law_ranks(u, self.new_items, ZIPF)

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
        logits = PRICE_WEIGHT * np.log1p(np.maximum(prices, 0))
        for f in range(len(FIELDS)):
            logits = logits + self.effects(f, ids[:, f], days)
        for j in range(LATENT_DIM):
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
        self.intercept = intercept_for(CLICK_RATE, lambda x: float(sigmoid(x + logits).mean()))


COLUMNS = ("click", "time", *(field.name for field in FIELDS), "price")
_PREFIXES = {ITEM: "i", SITE: "s"}  # letters of text ids; ids of other fields are integers


@dataclass(frozen=True, kw_only=True)
class DriftingLog(GeneratedLog):
    """Facts about a drifting log."""

    days: int
    new_items: int  # on each day
    features: str  # name of the features file, in the folder of the log
    bayes_auc_from_day: list[float]  # best possible AUC of the rows from the start of each day on


@dataclass(frozen=True, kw_only=True)
class DriftingLogSize(LogSize):
    """Size and seed of a log with times."""

    days: int = option(7, "days that the log covers", metavar="D", at_least=1, at_most=100)


def generate_drifting(
    path: str | Path,
    *,
    rows: int,
    days: int = 7,
    seed: int = 1234,
    overwrite: bool = False,
    chunk_rows: int = 1 << 16,
) -> DriftingLog:
    """Write a log with a header, its features file `<name>.yaml`, and its facts `<name>.json`.

    Tabs separate columns if the name ends in .tsv or .txt, else commas; it is compressed if the
    name ends in .gz after that. The log does not depend on `chunk_rows`.

    Raises:
        InputError: if rows, days or seed are out of range, or a file cannot be written.

    >>> import tempfile
    >>> log = generate_drifting(Path(tempfile.mkdtemp()) / "log.csv", rows=1000, days=2)
    >>> log.rows, log.features, log.bayes_auc > 0.6
    (1000, 'log.csv.yaml', True)
    """
    path = Path(path)
    size = DriftingLogSize(rows=rows, days=days, seed=seed)
    writer = LogWriter(path, size, overwrite=overwrite)
    features_path = path.with_name(path.name + ".yaml")
    check_writable(features_path, overwrite=overwrite)
    truth = DriftingTruth(rows, days, seed)
    separator = separator_of(path)

    def make(chunk: Words) -> LogChunk:
        times, ids, prices = truth.times(chunk), truth.ids(chunk), truth.prices(chunk)
        probabilities = truth.probabilities(times, ids, prices)
        clicks = truth.clicks(chunk, probabilities)
        text = _lines(clicks, times, ids, prices, separator)
        return LogChunk(clicks, probabilities, ids, text)

    header = f"{separator.join(COLUMNS)}\n".encode()
    log = writer.write(make, truth.sizes, chunk_rows=chunk_rows, header=header)
    with atomic_write(features_path) as temporary:
        # An item occurs on its first day and `ITEM_LIFE` days more.
        text = features_text(path.name, item_ttl=f"{ITEM_LIFE + 1}d")
        temporary.write_text(text, encoding="utf-8")
    facts = DriftingLog(
        **asdict(log),
        days=days,
        new_items=truth.new_items,
        features=features_path.name,
        bayes_auc_from_day=_auc_from_day(writer, truth),
    )
    writer.write_facts(facts)
    return facts


def _lines(
    clicks: npt.NDArray[np.int8], times: Integers, ids: Integers, prices: Integers, separator: str
) -> memoryview:
    import pyarrow as pa

    columns = [pa.array(clicks), pa.array(times)]
    columns += [values_of_ids(f, ids[:, f]) for f in range(len(FIELDS))]
    columns.append(pa.array(prices, mask=prices < 0))
    return lines_of_columns(columns, separator=separator)


def values_of_ids(field: int, ids: Integers) -> pa.Array:
    """Return the values of ids: integers, or text of a letter and a number; 0 is missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column, prefix = pa.array(ids, mask=ids == 0), _PREFIXES.get(field)
    if prefix is None:
        return column
    return pc.binary_join_element_wise(prefix, column.cast(pa.string()), "")


def features_text(name: str, *, item_ttl: str | None, key: str | None = None) -> str:
    """Return the features file of a drifting log, whose items occur for `item_ttl`."""
    lines = [f"# The columns of {name}: a features file for online training.", "label: click"]
    lines += ["time: time", *([f"key: {key}"] if key else []), "categorical:"]
    for f, field in enumerate(FIELDS):
        ttl = f"\n  ttl: {item_ttl}" if f == ITEM and item_ttl else ""
        lines.append(f"- name: {field.name}{ttl}" if ttl else f"- {field.name}")
    return "\n".join([*lines, "continuous:", "- price"]) + "\n"


def _auc_from_day(writer: LogWriter, truth: DriftingTruth) -> list[float]:
    times = truth.times(np.arange(writer.rows, dtype=np.uint64))
    starts = np.searchsorted(times, START + DAY * np.arange(truth.days))
    return [auc_or_half(writer.clicks[i:], writer.probabilities[i:]) for i in starts]
