"""Decide which impressions become which examples, write these as JSON, and count them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from cowclip_merlin.online.events.features import LATE, SAMPLE_RATE
from cowclip_merlin.online.joining.settings import JoinSettings
from cowclip_merlin.online.joining.store import CLICKED, LATE_CLICK, NO_CLICK, JoinStore, Row
from cowclip_merlin.tables.layout import LATEST
from cowclip_merlin.types import JsonObject


@dataclass
class JoinCounts:
    """Numbers of messages and examples since the state was made.

    Attributes:
        impressions: messages of the impressions log, all of them.
        clicks: messages of the actions log, all of them.
        damaged_impressions: set aside.
        damaged_clicks: set aside.
        repeated_impressions: whose key was there before.
        repeated_clicks: on an impression that has its click already.
        early_clicks: whose time is before that of their impression.
        clicks_without_impression: which no impression came for.
        positives: examples of impressions with a click in the window.
        late_positives: examples of impressions with a click after the window only.
        negatives: examples of impressions without a click in the window.
        dropped_negatives: such impressions that the sampling left out.
    """

    impressions: int = 0
    clicks: int = 0
    damaged_impressions: int = 0
    damaged_clicks: int = 0
    repeated_impressions: int = 0
    repeated_clicks: int = 0
    early_clicks: int = 0
    clicks_without_impression: int = 0
    positives: int = 0
    late_positives: int = 0
    negatives: int = 0
    dropped_negatives: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return the numbers by name."""
        return asdict(self)

    def summary(self) -> str:
        """Return all of them that are not 0, in words.

        >>> JoinCounts(impressions=1200, negatives=7).summary()
        '1,200 impressions, 7 negatives'
        """
        words = (f"{n:,} {name.replace('_', ' ')}" for name, n in self.as_dict().items() if n)
        return ", ".join(words) or "no messages"


class ExampleWriter:
    """Makes examples of impressions.

    Args:
        label: name of the label column.
        negatives: probability with which negatives are kept; each example carries it, so that
            nobody takes another column of the impression for it.

    >>> ExampleWriter("click", 0.1).write(b'{"request": "r1"}', 1)
    b'{"request": "r1","click":1,"cowclip_sample_rate":0.1}'
    """

    def __init__(self, label: str, negatives: float) -> None:
        self._label = label
        self._more: JsonObject = {SAMPLE_RATE: negatives}
        self._encode = json.JSONEncoder(separators=(",", ":")).encode
        names = (label, SAMPLE_RATE, LATE)
        texts = {json.dumps(name, ensure_ascii=ascii) for name in names for ascii in (True, False)}
        self._names = [text.encode() for text in texts]

    def write(self, impression: bytes, label: int, *, late: bool = False) -> bytes:
        """Return the example of an impression: JSON in one line.

        The columns go behind those of the impression, whose bytes stay as they are. One that has
        such a column, or is not written in one line, is read and written again.
        """
        more = {self._label: label} | self._more | ({LATE: 1} if late else {})
        in_one_line = impression[:1] == b"{" and impression[-1:] == b"}" and b"\n" not in impression
        if in_one_line and not any(name in impression for name in self._names):
            return impression[:-1] + b"," + self._encode(more)[1:].encode()
        return self._encode(json.loads(impression) | more).encode()


CLOSED_AT_ONCE = 20_000
"""Impressions whose windows end in one transaction, about."""


@dataclass(slots=True)
class Impression:
    """An impression that counts.

    Attributes:
        key: of its request.
        time: its event time.
        status: whether it was clicked.
        value: the message; None when no further example can come.
        number: of its row in the store; None if it has none yet.
    """

    key: str
    time: int
    status: int
    value: bytes | None
    number: int | None = None


class Matching:
    """Matches batches of impressions and clicks, within a transaction of the store.

    Args:
        settings: of the join.
        store: keeps the impressions and the clicks that wait.
        writer: makes the examples.
        counts: to add to.
        watermark: event time that both logs have come to, from `advance` of an earlier process.

    Attributes:
        examples: made since the last `take_examples`, each with the event time when it is due:
            that of the click, or of the end of the window.
        watermark: event time that both logs have come to; None before the first.
    """

    def __init__(
        self,
        settings: JoinSettings,
        store: JoinStore,
        writer: ExampleWriter,
        counts: JoinCounts,
        watermark: int | None = None,
    ) -> None:
        self._settings, self._store, self._writer = settings, store, writer
        self._counts, self.watermark = counts, watermark
        self.examples: list[tuple[int, bytes]] = []

    def take_examples(self) -> list[bytes]:
        """Return the examples made since the last call, in the order of the times they are due.

        Clicks and impressions are read in turns, often thousands at a time. In the order of
        reading, batches of a training would hold one label only.
        """
        examples, self.examples = sorted(self.examples, key=lambda each: each[0]), []
        return [value for _, value in examples]

    def add_impressions(
        self, keys: Sequence[str], times: Sequence[int], values: Sequence[bytes]
    ) -> None:
        """Take over impressions, in the order of their log.

        Args:
            keys: of their requests.
            times: their event times.
            values: the messages.
        """
        newest, waiting = self._store.newest_impressions(keys), self._waiting(keys)
        added, matched = [], []
        for key, time, value in zip(keys, times, values, strict=True):
            before = newest.get(key)
            if before is not None and time <= before + self._settings.kept:
                self._counts.repeated_impressions += 1
                continue
            newest[key] = time
            impression = Impression(key, time, NO_CLICK, value)
            if key in waiting:
                matched += self._match_waiting(impression, waiting[key])
            if self._is_over(time):
                self._end(impression)
            added.append((key, time, impression.status, impression.value))
        self._store.add_impressions(added)
        self._store.remove_clicks(matched)

    def add_clicks(self, keys: Sequence[str], times: Sequence[int]) -> None:
        """Take over clicks, in the order of their log.

        Args:
            keys: of their requests.
            times: their event times.
        """
        known = defaultdict(list)
        for number, key, time, status, value in self._store.impressions(list(dict.fromkeys(keys))):
            known[key].append(Impression(key, time, status, value, number))
        waiting, changed = [], {}
        for key, time in zip(keys, times, strict=True):
            found = next((i for i in known.get(key, ()) if self._belongs(time, i)), None)
            if found is None:
                waiting.append((key, time))
            elif self._click(found, time, is_over=self._is_over(found.time)):
                changed[found.number] = found
        self._store.add_clicks(waiting)
        self._store.set_status((i.status, i.value, i.number) for i in changed.values())

    def advance(self, watermark: int) -> bool:
        """Note the event time that both logs have come to: end windows and forget what is over.

        Returns:
            Whether this is done. If too many windows would end at once, only some of them do.
        """
        if self.watermark is not None and watermark <= self.watermark:
            return True
        window, now = self._settings.window, watermark
        since = 0 if self.watermark is None else self.watermark - window
        cut = self._store.time_of(CLOSED_AT_ONCE, since)
        if cut is not None:
            now = min(watermark, max(cut, since + 1) + window)
        self._end_all(self._store.ending(since, now - window))
        self._store.forget_impressions(now - self._settings.kept)
        self._forget_clicks(now - self._settings.lateness)
        self.watermark = now
        return now == watermark

    def finish(self) -> bool:
        """End all windows and forget everything, as no further messages come.

        Returns:
            Whether this is done; else call it again in another transaction.
        """
        window = self._settings.window
        since = 0 if self.watermark is None else self.watermark - window
        cut = self._store.time_of(CLOSED_AT_ONCE, 0)
        before = LATEST + 1 if cut is None else cut + 1
        self._end_all(self._store.ending(since, before))
        self._store.forget_impressions(before)
        if cut is None:
            self._forget_clicks(LATEST + 1)
        return cut is None

    def _waiting(self, keys: Sequence[str]) -> dict[str, list[tuple[int, int]]]:
        """Key -> (time, row number) of its waiting clicks."""
        waiting = defaultdict(list)
        for number, key, time in self._store.waiting_clicks(list(dict.fromkeys(keys))):
            waiting[key].append((time, number))
        return waiting

    def _match_waiting(
        self, impression: Impression, clicks: Sequence[tuple[int, int]]
    ) -> list[int]:
        """Apply the clicks that belong to a new impression; return their row numbers."""
        own = sorted(click for click in clicks if self._belongs(click[0], impression))
        for time, _ in own:
            self._click(impression, time, is_over=False)
        return [number for _, number in own]

    def _belongs(self, click: int, impression: Impression) -> bool:
        since = click - impression.time
        return -self._settings.lateness <= since <= self._settings.clicks_until

    def _is_over(self, time: int) -> bool:
        """Whether the window of an impression of this time has ended."""
        return self.watermark is not None and time + self._settings.window < self.watermark

    def _click(self, impression: Impression, time: int, *, is_over: bool) -> bool:
        """Apply a click to its impression; return whether that changed the impression."""
        self._counts.early_clicks += time < impression.time
        in_window = time <= impression.time + self._settings.window
        if impression.status == CLICKED or (impression.status == LATE_CLICK and not in_window):
            self._counts.repeated_clicks += 1
            return False
        if not is_over and not in_window:
            impression.status = LATE_CLICK
            return True
        self._counts.repeated_clicks += impression.status == LATE_CLICK
        self._write_positive(impression, time, late=is_over)
        return True

    def _write_positive(self, impression: Impression, due: int, *, late: bool) -> None:
        self._counts.late_positives += late
        self._counts.positives += not late
        self.examples.append((due, self._writer.write(impression.value, 1, late=late)))
        impression.status, impression.value = CLICKED, None

    def _end_all(self, rows: Sequence[Row]) -> None:
        """End the windows of impressions in the store."""
        changed = []
        for number, key, time, status, value in rows:
            impression = Impression(key, time, status, value, number)
            self._end(impression)
            if status == LATE_CLICK:
                changed.append((impression.status, impression.value, number))
        self._store.set_status(changed)

    def _forget_clicks(self, before: int) -> None:
        self._counts.clicks_without_impression += self._store.forget_clicks(before)

    def _end(self, impression: Impression) -> None:
        """End the window of an impression."""
        if impression.status == CLICKED:
            return
        due = impression.time + self._settings.window
        if self._settings.keeps_negative(impression.key):
            self._counts.negatives += 1
            self.examples.append((due, self._writer.write(impression.value, 0)))
        else:
            self._counts.dropped_negatives += 1
        if impression.status == LATE_CLICK:
            self._write_positive(impression, due, late=True)
