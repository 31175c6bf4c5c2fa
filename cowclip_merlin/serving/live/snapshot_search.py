"""Find the message of a sync log with which a server can start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cowclip_merlin.online.new_columns import ADDED
from cowclip_merlin.online.sync.sync_message import GENERATION, SNAPSHOT, SYNCED
from cowclip_merlin.serving.live.served_model import Version

if TYPE_CHECKING:
    from cowclip_merlin.online.logs.message_log import Position
    from cowclip_merlin.online.sync.sync_message import SyncMessage

MOST = 16
"""Starts that a search remembers; the trainer keeps two snapshots."""


@dataclass(kw_only=True)
class Start:
    """A message that names a snapshot.

    Attributes:
        run: folder of the run, as the trainer knows it.
        number: of the snapshot.
        version: that the snapshot has.
        added: columns that the trainer's model has got at restarts.
        after: place after the message.
        synced: whether a sync follows in the log. Before it the model may be older than what
            other servers have, since the trainer went on while it wrote the snapshot.
    """

    run: str
    number: int
    version: Version
    after: Position
    added: tuple[str, ...] = ()
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
        given = message.info.get(ADDED)
        added = tuple(map(str, given)) if type(given) is list else ()
        return cls(run=run, number=int(number), version=version, after=after, added=added)


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
