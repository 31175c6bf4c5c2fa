"""Follow a sync log: find where to start, keep one model up to date, and replace it on a loss."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cowclip_merlin.addresses import FilePath
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.logs.message_log import (
    LogRefused,
    LogUnavailable,
    Message,
    MessageLog,
    MessagesLost,
    Position,
    lag,
)
from cowclip_merlin.online.new_columns import COLUMNS
from cowclip_merlin.online.served_model import MessagesMissing, ServedModel, Version
from cowclip_merlin.online.sync.sync_message import GENERATION, SNAPSHOT, SYNCED, SyncMessage
from cowclip_merlin.types import JsonObject
from cowclip_merlin.workflows.raw.log_format import LogFormat

MOST = 16
"""Starts that a search remembers; the trainer keeps two snapshots."""


@dataclass(kw_only=True)
class Start:
    """A message that names a snapshot.

    Attributes:
        run: folder of the run, as the trainer knows it.
        number: of the snapshot.
        version: that the snapshot has.
        columns: which the trainer's model reads; None: all of the run.
        after: place after the message.
        synced: whether a sync follows in the log. Before it the model may be older than what
            other servers have, since the trainer went on while it wrote the snapshot.
    """

    run: str
    number: int
    version: Version
    after: Position
    columns: tuple[str, ...] | None = None
    synced: bool = False

    @classmethod
    def from_message(cls, message: SyncMessage, after: Position) -> Start | None:
        """A start from a message of any kind; None if it names no snapshot."""
        if message.kind not in (GENERATION, SNAPSHOT):
            return None
        run, number = message.info.get("run"), str(message.info.get("snapshot"))
        if type(run) is not str or not (number.isascii() and number.isdecimal()):
            return None
        version = Version(message.generation, message.seq, {})
        given = message.info.get(COLUMNS)
        columns = tuple(map(str, given)) if type(given) is list else None
        return cls(run=run, number=int(number), version=version, after=after, columns=columns)


@dataclass
class SnapshotSearch:
    """Remembers the starts that a log names.

    Attributes:
        generation: starts of generations before this one do not count.
        starts: the last ones, in the order of the log.
    """

    generation: int = 0
    starts: list[Start] = field(default_factory=list)

    def note(self, message: SyncMessage, after: Position) -> None:
        """Look at the next message of the log."""
        if message.kind == SYNCED:
            for start in self.starts:
                start.synced |= start.version.generation == message.generation
        start = Start.from_message(message, after)
        if start and message.generation >= self.generation:
            self.starts = [*self.starts, start][-MOST:]

    def best_first(self) -> list[Start]:
        """Starts in the order in which to try them: synced ones first, then the newest."""
        return sorted(self.starts, key=lambda s: (s.synced, s.version[:2]), reverse=True)


READ_AT_ONCE = 64
"""Messages of one read; each has 4,096 rows at most."""

RETRY = 1.0
"""Seconds until something that failed is tried again."""

NO_START = "the log names no snapshot yet; wait for the trainer to write one"
FIRST_SYNC = "a snapshot is loaded; it serves as soon as the trainer has sent a sync"

Load = Callable[[str | Path, int, Version, Sequence[str]], ServedModel]


@dataclass
class FollowerCounts:
    """What a follower has seen since its start.

    Attributes:
        messages: of the log, repeated ones with them.
        repeated: that it had taken over before.
        damaged: that could not be read, or were of another model.
        gaps: places where messages were missing.
        loads: snapshots loaded.
        swaps: times that another model took the place of the one that served.
    """

    messages: int = 0
    repeated: int = 0
    damaged: int = 0
    gaps: int = 0
    loads: int = 0
    swaps: int = 0


class Follower:
    """Keeps a model up to date by the messages of a log.

    `model` is what requests use: take the reference once for each request. All else is for the
    one thread that calls `step` or `run`.

    A model is replaced when the trainer starts again, or when messages are missing. The new one
    is loaded from the snapshot that the log names, beside the model that goes on serving. It
    serves when it has all changes up to the end of a sync.

    Args:
        open_log: opens the sync log; called again if its server was away.
        load: loads a model, such as `ServedModel.from_snapshot`.
        run: the run folder as this machine sees it; None: as the trainer names it.
        name: of the log, for messages.

    Attributes:
        model: the model that serves; None before the first one.
        counts: of messages and models.
        problem: why the log or a snapshot cannot be read now; None if all is well.
        behind: messages in the log that this follower has not read, as of its last look.
        layout: None, as the columns of a stream are not made of others.
    """

    layout: None = None

    def __init__(
        self,
        open_log: Callable[[], MessageLog],
        load: Load = ServedModel.from_snapshot,
        *,
        run: str | Path | None = None,
        name: str = "the log",
    ) -> None:
        self.model: ServedModel | None = None
        self.counts, self.behind = FollowerCounts(), 0
        self.problem: str | None = None
        self._open_log, self._load, self._run, self._name = open_log, load, run, name
        self._log: MessageLog | None = None
        self._position: Position | None = None  # None: the start of the log
        self._beside: ServedModel | None = None  # catches up, and then serves
        self._search: SnapshotSearch | None = SnapshotSearch()  # None: a model follows the log
        self._looked = self._tried = -RETRY

    @property
    def waiting_for(self) -> str | None:
        """Why the model that serves does not follow the log, or why there is none."""
        if self._search is not None:
            return self.problem or NO_START
        if self._beside is not None:
            return FIRST_SYNC
        return None

    def run(self, stop: threading.Event, log: logging.Logger) -> None:
        """Follow the log until `stop` is set, whatever happens to the log.

        Raises:
            LogRefused: its server refuses access, and there is no model that could serve.
        """
        said = None
        while not stop.is_set():
            try:
                self.step(wait=0.2)
            except LogRefused:
                raise
            except Exception as error:  # serve on with what there is
                log.exception("the follower failed and starts again")
                self.problem = f"{type(error).__name__}: {error!s:.100}"
                self._begin_again()
            if self.problem != said:
                said = self.problem
                log.warning("%s", said) if said else log.info("%s: followed again", self._name)
            if self.problem:
                stop.wait(RETRY)
        if self._log is not None:
            self._log.close()

    def step(self, wait: float = 0.0) -> int:
        """Read messages once, take them over, and return how many there were.

        Args:
            wait: seconds to wait for a message if there is none.

        Raises:
            LogRefused: the log's server refuses access, and there is no model that could serve.
        """
        try:
            messages = self._read(wait)
        except MessagesLost as error:
            self.problem = str(error)
            self.counts.gaps += 1
            self._begin_again()
            return 0
        except (InputError, LogUnavailable) as error:  # ask again later; serve with what there is
            self.problem = str(error)
            if self.model is None and isinstance(error, LogRefused):
                raise
            return 0
        if self._search is None:
            self.problem = None
        for message in messages:
            self._take(message)
        if self._search is not None and len(messages) < READ_AT_ONCE:
            self._try_starts(self._search)
        return len(messages)

    def _read(self, wait: float) -> list[Message]:
        if self._log is None:
            self._log = self._open_log()
        if self._position is None:
            self._position = self._log.start()
        messages = self._log.read(self._position, READ_AT_ONCE, wait)
        now = time.monotonic()
        if len(messages) < READ_AT_ONCE:
            self.behind = 0
        elif now - self._looked >= RETRY:
            self.behind, self._looked = lag(messages[-1].after, self._log.end()), now
        return messages

    def _take(self, message: Message) -> None:
        """Look at one message; whatever it holds, go on after it."""
        self._position = message.after
        self.counts.messages += 1
        try:
            self._follow(SyncMessage.decode(message.value), message.after)
        except InputError as error:  # the messages after it show the gap
            self.counts.damaged += 1
            self.problem = str(error)

    @property
    def _following(self) -> ServedModel | None:
        """The model that takes over messages."""
        return self.model if self._beside is None else self._beside

    def _follow(self, message: SyncMessage, after: Position) -> None:
        model = self._following
        if self._search is not None:
            self._search.note(message, after)
        elif message.generation > model.generation:
            self._next_generation(message, after)
        elif message.generation < model.generation or not self._apply(model, message, after):
            self.counts.repeated += 1
        elif message.kind == SYNCED:
            self._swap()

    def _apply(self, model: ServedModel, message: SyncMessage, after: Position) -> bool:
        """Let a model take over a message; False if it had it before."""
        try:
            return model.apply(message)
        except MessagesMissing as error:
            self.counts.gaps += 1
            self._search_from(message, after, str(error))
            return True

    def _next_generation(self, message: SyncMessage, after: Position) -> None:
        """Load the model of a trainer that has started again."""
        self.problem = f"generation {message.generation} has no start"
        if not self._begin_with(Start.from_message(message, after)):
            self.counts.gaps += 1
            self._search_from(message, after, self.problem)

    def _search_from(self, message: SyncMessage, after: Position, problem: str | None) -> None:
        """Wait for a snapshot that holds what is missing; this message may name one."""
        generation = self._following.generation
        self.problem, self._beside = problem, None
        self._search = SnapshotSearch(generation)
        self._search.note(message, after)

    def _begin_again(self) -> None:
        """Search the whole log for a snapshot."""
        self._position, self._beside, self._search = None, None, SnapshotSearch()

    def _try_starts(self, search: SnapshotSearch) -> None:
        """Load the best of the snapshots that the log names, now and then."""
        if not search.starts or time.monotonic() - self._tried < RETRY:
            return
        self._tried = time.monotonic()
        for start in search.best_first():
            if self._begin_with(start):
                self._tried = -RETRY
                return

    def _begin_with(self, start: Start | None) -> bool:
        """Load the snapshot of a start and follow the log from there; False if it cannot be."""
        if start is None:
            return False
        try:
            loaded = self._load(self._run or start.run, start.number, start.version, start.columns)
        except InputError as error:
            self.problem = f"{error} (generation {start.version.generation})"
            return False
        self.counts.loads += 1
        self.problem, self._search, self._position = None, None, start.after
        self._beside = loaded
        return True

    def _swap(self) -> None:
        """Let the model serve that has caught up."""
        if self._beside is not None:
            self.model, self._beside = self._beside, None
            self.counts.swaps += 1


@dataclass(frozen=True)
class FixedModel:
    """Stands where a `Follower` does, for a model that follows no log.

    Attributes:
        model: the model.
        example: an event that it can score, for the document of the interface.
        layout: columns of the log, some of which others are made of.
    """

    model: ServedModel
    example: JsonObject
    layout: LogFormat
    counts: None = None
    problem: None = None
    waiting_for: None = None

    @classmethod
    def of_run(cls, run: str | FilePath, data: str | FilePath | None = None) -> FixedModel:
        """Load the model of a run of `cowclip train`.

        Args:
            run: the run folder.
            data: the folder that it was trained on; None: where it was then.

        Raises:
            InputError: the run or the folder is missing, damaged, or another one.
        """
        from cowclip_merlin.online.fixed_model import load_fixed_model  # imports TensorFlow

        return cls(*load_fixed_model(run, data))
