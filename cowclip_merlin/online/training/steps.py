"""The steps of a stream: chosen once, noted, and the same for whoever executes them.

To choose a step is to look at clocks, at what has come, and at `max_wait`. To execute it is a
function of the log and the step. So each step is noted before it is executed:

    RUN/steps/40000.jsonl                                        after the snapshot 40000
    {"until": [41024, 0, 907520], "factor": 1, "now": 1700000000}
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from cowclip_merlin.online.events.events import Damage, Events
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.events.messages import AHEAD, encode_messages, refuse_ahead
from cowclip_merlin.online.logs.damaged_messages import DamagedMessages
from cowclip_merlin.online.logs.message_log import (
    LogUnavailable,
    Message,
    MessageLog,
    MessagesLost,
    Position,
    Retrying,
    lag,
)
from cowclip_merlin.online.logs.partitions import are_within, in_order, position_after, positions
from cowclip_merlin.online.training.repeats import RepeatFilter
from cowclip_merlin.system.files import atomic_write
from cowclip_merlin.types import Array


class Do(str, Enum):
    """What a step does. Only `TRAIN` is noted."""

    BEGIN = "begin"  # read from `until` on
    TRAIN = "train"
    SYNC = "sync"  # send servers what has changed
    KNOWN = "known"  # tell servers of the snapshot `number`
    SAVE = "save"
    HEAR = "hear"  # nothing: the workers tell of themselves
    END = "end"


class Step(NamedTuple):
    """What all workers of a stream do next; to train is all that one notes.

    The messages of a step are those after the step before, up to a place. Those without events make
    an empty one.

    Attributes:
        until: how far the log is read, in each partition.
        factor: times the batch size that its hyper-parameters are for.
        now: seconds since 1970; messages from far beyond are refused.
        do: what it does.
        number: to begin a new run from another one, the time of the first event; or of a snapshot.
    """

    until: Position
    factor: int = 1
    now: int = 0
    do: Do = Do.TRAIN
    number: int = -1

    def line(self) -> str:
        """Return its line in the journal."""
        return json.dumps({"until": self.until, "factor": self.factor, "now": self.now}) + "\n"


class StepJournal:
    """Notes steps in one file for each snapshot.

    Args:
        folder: of the files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[str] | None = None

    def after(self, snapshot: int) -> list[Step]:
        """Return the steps that were noted after a snapshot, also after later ones."""
        files = sorted(each for each in self._snapshots() if each >= snapshot)
        return [step for each in files for step in _read(self._path(each))]

    def begin(self, snapshot: int, *, keep: Sequence[int]) -> None:
        """Note the next steps after this snapshot.

        Args:
            snapshot: its number.
            keep: snapshots that may still be loaded; files of older ones are removed.
        """
        self.close()
        self._folder.mkdir(exist_ok=True)
        oldest, known = min([*keep, snapshot]), list(self._snapshots())
        for each in known:
            if each < oldest:
                self._path(each).unlink()
        # A later snapshot may be damaged: then its steps follow, too.
        path = self._path(max([snapshot, *known]))
        with atomic_write(path) as temporary:  # without what a killed process left of a line
            temporary.write_text("".join(step.line() for step in _read(path)), encoding="utf-8")
        self._file = path.open("a", encoding="utf-8")

    def note(self, step: Step) -> None:
        """Note a step before it is executed; it survives the death of the process."""
        self._file.write(step.line())
        self._file.flush()

    def forget(self) -> None:
        """Forget all steps."""
        self.close()
        for each in self._snapshots():
            self._path(each).unlink()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _snapshots(self) -> Iterator[int]:
        for path in self._folder.glob("*.jsonl"):
            if path.stem.isdigit():
                yield int(path.stem)

    def _path(self, snapshot: int) -> Path:
        return self._folder / f"{snapshot}.jsonl"


def _read(path: Path) -> list[Step]:
    """Steps of a file, without a last line that is not finished."""
    if not path.exists():
        return []
    *lines, _ = path.read_text(encoding="utf-8").split("\n")
    found = map(json.loads, lines)
    return [Step(**each | {"until": tuple(each["until"])}) for each in found]


WAIT = 0.05
"""Seconds that one call waits for messages at most."""

_READ_AT_LEAST = 256
LOOKS = 60
"""Times that a worker looks for messages which another one has read; about seconds."""


class _Pending(NamedTuple):
    """Messages that were read and are in no step yet, in the order in which they came."""

    messages: list[Message]
    events: Events
    reasons: dict[int, str]  # what is wrong with some of them

    @classmethod
    def concatenate(cls, parts: Sequence[_Pending]) -> _Pending:
        if len(parts) == 1:
            return parts[0]
        messages: list[Message] = []
        reasons: dict[int, str] = {}
        for part in parts:
            reasons |= {len(messages) + i: reason for i, reason in part.reasons.items()}
            messages += part.messages
        return cls(messages, Events.concatenate([part.events for part in parts]), reasons)

    def take(self, which: Array) -> _Pending:
        """Return those with some numbers, in this order."""
        if len(which) == len(self.messages) and (which[1:] > which[:-1]).all():
            return self
        numbers = which.tolist()
        reasons = {i: self.reasons[k] for i, k in enumerate(numbers) if k in self.reasons}
        return _Pending([self.messages[k] for k in numbers], self.events.filter(which), reasons)

    def good(self) -> Array:
        """Return which are events, bool [n]."""
        mask = np.ones(len(self.messages), bool)
        mask[list(self.reasons)] = False
        return mask


class EventReader:
    """Cuts a log into steps, and reads the events of steps.

    To choose a step is to look at the clock, and at what has come. The events of a step depend on
    the log, the step and the steps before it only. So a process that takes the same steps, now or
    later, gets the same events in the same order.

    Args:
        log: of events.
        features: their columns.
        position: where to start.
        damaged: counts the messages that are no events.
        repeats: drops events by key; None keeps all.
        warn: is called with a line if the log does not answer.
        looks: times to look for the messages of a step, which another process may see earlier.

    Attributes:
        position: the place after the last step.
        pending: events of the next step, as far as they were counted.
    """

    def __init__(
        self,
        log: MessageLog,
        features: LogFeatures,
        position: Position,
        *,
        damaged: DamagedMessages,
        repeats: RepeatFilter | None = None,
        warn: Callable[[str], None] = lambda _: None,
        looks: int = 1,
    ) -> None:
        self._looks = looks
        self._log, self._features, self.position = log, features, position
        self._damaged, self._repeats = damaged, repeats
        self._read_to = position
        self._parts: list[_Pending] = []
        self.pending, self._uncounted, self._size = 0, 0, 1
        self._began = 0.0  # when the first event of the next step came
        self._end, self._end_asked = position, -1.0
        self._retrying = Retrying(lambda error: warn(f"{error}; training waits"))

    def choose(
        self,
        size: int,
        factor: int = 1,
        *,
        max_wait: float = 0.0,
        wait: float = WAIT,
        rest: bool = False,
    ) -> Step | None:
        """Choose the next step; None if its events are not there yet.

        Messages without any event make a step of their own.

        Args:
            size: events of the step.
            factor: of the step.
            max_wait: seconds after which it is returned although it has fewer.
            wait: seconds to wait for messages in this call.
            rest: return what is there, although it is less.
        """
        until, asked, self._size = time.monotonic() + wait, False, size
        while True:
            step, now = self._cut(size, factor, max_wait, rest), time.monotonic()
            if step is not None or (asked and now >= until):
                return step
            self._read(size - self.pending, max(until - now, 0.0))
            asked = True

    def take(self, step: Step) -> Events | None:
        """Return the events of the next step; None if it has none.

        Args:
            step: from `choose`, of this process or another one.

        Raises:
            MessagesLost: the log does not have its messages any more.
            LogUnavailable: the log does not answer; the same call may succeed later.
        """
        if not self._log.has_reached(self._read_to, step.until):
            is_behind = not self._parts  # in all partitions
            self._read_up_to(step.until)
            self._read_to = step.until if is_behind else self._read_to
        if not self._parts:  # a log may compact them
            self.position = step.until
            return None
        whole = _Pending.concatenate(self._parts)
        order, before = in_order(whole.messages), self.position
        inside = are_within([whole.messages[i] for i in order], step.until)
        which = np.asarray(order)[inside]
        left = np.setdiff1d(np.arange(len(inside)), which)
        self._parts = [whole.take(left)] if len(left) else []
        self.pending, self._uncounted, self.position = 0, len(left), step.until
        taken = whole.take(which)
        damage = Damage()
        damage.reasons = taken.reasons
        refuse_ahead(taken.events.times, step.now, self._features, damage)
        if damage.reasons:
            after = positions(before, taken.messages)
            messages = [m._replace(after=at) for m, at in zip(taken.messages, after)]
            self._damaged.add(messages, damage.reasons)
        events = taken.events.filter(taken.good())
        if self._repeats is not None and len(events):
            events = events.filter(self._repeats.new(events.keys, events.times))
        return events if len(events) else None

    def read_ahead(self, messages: int) -> None:
        """Read messages of later steps, if they are there: up to about so many in all."""
        if sum(len(part.messages) for part in self._parts) < messages:
            self._read(messages, 0.0)

    def _read_up_to(self, until: Position) -> None:
        """Read messages that were read before, by this process or another one."""
        for left in reversed(range(self._looks)):
            try:
                self._add(self._log.between(self._read_to, until))
                self._retrying.answered()
                return
            except MessagesLost as error:
                if self._looks == 1:
                    raise
                if not left:
                    raise MessagesLost(
                        f"{error}; another worker has read them: let all read the same log"
                    ) from None
                self._retrying.wait(error)

    def lag(self) -> int:
        """Return about how many messages are in no step yet; asks the log twice a second."""
        now = time.monotonic()
        if now - self._end_asked > 0.5:
            try:
                self._end, self._end_asked = self._log.end(), now
            except LogUnavailable as error:
                self._retrying.wait(error)
        return lag(self.position, self._end)

    def at_end(self) -> bool:
        """Return whether the log has no more messages than those of a step that is not full."""
        if self._may_do(self._size):
            return False
        try:
            return self._log.end()[0] <= self._read_to[0]
        except LogUnavailable as error:
            self._retrying.wait(error)
            return False

    def _may_do(self, size: int) -> bool:
        """Whether there may be enough for a step, or messages that give no event."""
        enough = self.pending + self._uncounted >= size
        return self._uncounted > 0 and (not self.pending or enough)

    def _cut(self, size: int, factor: int, max_wait: float, rest: bool) -> Step | None:
        """Return the next step, if there is enough for one."""
        is_late = self.pending and max_wait and time.monotonic() - self._began >= max_wait
        ends = self._parts and (rest or is_late)
        if not ends and not self._may_do(size):
            return None
        self._parts, now = [_Pending.concatenate(self._parts)], int(time.time())
        messages, events, _ = self._parts[0]
        numbers = in_order(messages)
        good = self._parts[0].good() & (events.times <= now + AHEAD)
        found = np.flatnonzero(good[np.asarray(numbers)])  # places in the order
        new = found
        if self._repeats is not None and len(found):
            at = np.asarray(numbers)[found]
            new = found[self._repeats.are_new(events.keys[at], events.times[at])]
        if len(new) >= size:  # up to the next event: what is none in between is past
            later = found[found > new[size - 1]]
            numbers = numbers[: later[0]] if len(later) else numbers
        elif len(new) and not ends:
            self._began = self._began if self.pending else time.monotonic()
            self.pending, self._uncounted = len(new), 0
            return None
        self.pending, self._uncounted = min(len(new), size), 0
        until = position_after(self.position, [messages[i] for i in numbers])
        return Step(until, factor, now)

    def _read(self, wanted: int, wait: float) -> None:
        """Read messages, if there are some."""
        try:
            messages = self._log.read(self._read_to, max(wanted, _READ_AT_LEAST), min(wait, WAIT))
            self._retrying.answered()
        except LogUnavailable as error:
            self._retrying.wait(error)
            return
        if messages:
            self._add(messages)
        else:
            self._read_to = self._log.past_gaps(self._read_to)
            if not self._parts:
                self.position = self._read_to

    def _add(self, messages: list[Message]) -> None:
        if messages:
            values = [message.value for message in messages]
            events, damage = encode_messages(values, self._features)
            self._parts.append(_Pending(messages, events, damage.reasons))
            self._uncounted += len(messages)
            self._read_to = messages[-1].after
