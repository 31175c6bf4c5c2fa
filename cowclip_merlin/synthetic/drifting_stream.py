"""Generate the events of a drifting log as a stream, with keys and true click probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.event_log import RawEvents
from cowclip_merlin.settings import option
from cowclip_merlin.synthetic.drifting_log import (
    FIELDS,
    ITEM_LIFE,
    DriftingLogSize,
    DriftingTruth,
    features_text,
    values_of_ids,
)
from cowclip_merlin.synthetic.log_writer import random_words
from cowclip_merlin.system.files import atomic_write, check_writable

KEY, PROBABILITY = "request", "probability"
"""Columns that the stream has beside those of the log."""
_KEYS = 11_000  # a stream of random numbers


@dataclass(frozen=True, kw_only=True)
class StreamSize(DriftingLogSize):
    """Size and seed of a generated stream; a row is an event."""

    rows: int = option(
        1_000_000,
        "events to generate",
        flag="--events",
        shown="1,000,000",
        at_least=1,
        at_most=1 << 32,
    )


class DriftingStream:
    """The events that `generate_drifting` writes for the same rows, days and seed, in pieces.

    They cover days of drift evenly, and do not depend on the most events of a `piece`. The key of
    event i is a number that depends on the seed, plus i. `probability` is the true probability of a
    click; the features file does not name it, so no model reads it.

    Raises:
        InputError: a number is out of range.

    >>> pieces = list(DriftingStream(events=1000, days=2, seed=7, piece=600))
    >>> [len(piece) for piece in pieces], sorted(pieces[0].columns)[:3]
    ([600, 400], ['category', 'device', 'hour'])
    """

    def __init__(self, *, events: int, days: int = 7, seed: int = 1234, piece: int = 4096) -> None:
        StreamSize(rows=events, days=days, seed=seed)  # checks them
        self.events, self._piece = events, piece
        self._truth = DriftingTruth(events, days, seed)
        upper = int(random_words(seed, _KEYS, 0)) >> 34  # 30 bits: keys stay below 2^62
        self.first_key = upper << 32

    def __iter__(self) -> Iterator[RawEvents]:
        """Pieces of the stream, in time order."""
        for start in range(0, self.events, self._piece):
            yield self._events(start, min(start + self._piece, self.events))

    def _events(self, start: int, stop: int) -> RawEvents:
        rows, truth = np.arange(start, stop, dtype=np.uint64), self._truth
        times, ids, prices = truth.times(rows), truth.ids(rows), truth.prices(rows)
        probabilities = truth.probabilities(times, ids, prices)
        columns: dict[str, Sequence[object]] = {
            KEY: range(self.first_key + start, self.first_key + stop),
            "time": times.tolist(),
        }
        for f, field in enumerate(FIELDS):  # as the log has them; None for a missing value
            columns[field.name] = values_of_ids(f, ids[:, f]).to_pylist()
        columns["price"] = [None if price < 0 else price for price in prices.tolist()]
        columns[PROBABILITY] = np.round(probabilities, 6).tolist()
        labels = truth.clicks(rows, probabilities)
        return RawEvents(columns=columns, labels=labels, times=times.astype(np.float64))


def write_stream_features(path: str | Path, *, seconds_per_day: float | None) -> None:
    """Write the features file of a stream; a file with the same text may be there.

    `seconds_per_day` is the event time in a day of drift; None: items do not expire.
    """
    path, ttl = Path(path), None
    if seconds_per_day is not None:
        ttl = f"{max(1, round((ITEM_LIFE + 1) * seconds_per_day))}s"
    text = features_text("a drifting stream", item_ttl=ttl, key=KEY)
    if path.is_file() and path.read_text(encoding="utf-8", errors="replace") == text:
        return
    if path.exists():
        raise InputError(f"{path}: is not the features file of this stream; use another path")
    check_writable(path)
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
