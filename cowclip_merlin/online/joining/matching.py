"""Decide which impressions become which examples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from cowclip_merlin.online.joining.counts import JoinCounts
from cowclip_merlin.online.joining.examples import ExampleWriter
from cowclip_merlin.online.joining.settings import JoinSettings
from cowclip_merlin.online.joining.store import CLICKED, LATE_CLICK, NO_CLICK, JoinStore, Row
from cowclip_merlin.tables.layout import LATEST

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
