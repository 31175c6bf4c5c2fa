"""What killing the trainer cost, and whether an event was lost."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cowclip_merlin.demo.measuring.sync_watch import Sync, SyncWatch
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.logs.message_log import MessageLog
from cowclip_merlin.types import JsonObject


@dataclass(frozen=True, kw_only=True)
class KillCost:
    """What one kill of the trainer cost.

    Attributes:
        killed_after: seconds after the start of the events.
        without_syncs: seconds between the last sync before and the first one after.
        caught_up_after: seconds from the kill to the first sync after which no more events waited
            than a second brings; None if that was not reached.
        retrained: events that were trained again, since the snapshot.
    """

    killed_after: float
    without_syncs: float
    caught_up_after: float | None
    retrained: int


def kill_cost(watch: SyncWatch, *, start: float, killed: float, rate: float) -> KillCost | None:
    """Return what a kill cost; None if no sync came before or after it.

    Args:
        watch: of the syncs.
        start: of the events, seconds since 1970.
        killed: when the trainer was killed, seconds since 1970.
        rate: events per second.
    """
    before = [sync for sync in watch.syncs if sync.seen <= killed]
    after = _of_next_generation(watch.syncs, before)
    if not before or not after:
        return None
    _, snapshot = watch.starts[after[0].generation]
    caught_up = [sync.seen for sync in after if int(sync.info.get("lag", 0)) <= rate]
    return KillCost(
        killed_after=killed - start,
        without_syncs=after[0].seen - before[-1].seen,
        caught_up_after=caught_up[0] - killed if caught_up else None,
        retrained=max(before[-1].trained - snapshot, 0),
    )


def _of_next_generation(syncs: Sequence[Sync], before: Sequence[Sync]) -> list[Sync]:
    if not before:
        return []
    return [sync for sync in syncs if sync.generation > before[-1].generation]


@dataclass(frozen=True, kw_only=True)
class Accounts:
    """Where each impression went.

    Attributes:
        impressions: in their log, without repeats.
        clicks: in their log.
        examples: in the log of examples.
        due: impressions whose window was over at the end.
        lost: those of them without an example.
        repeated: examples of a key that has one before, such as late clicks.
        read: examples that the trainer has read.
        trained: events that it has trained, each counted once.
    """

    impressions: int
    clicks: int
    examples: int
    due: int
    lost: int
    repeated: int
    read: int
    trained: int


def take_stock(
    features: LogFeatures,
    impressions: MessageLog,
    actions: MessageLog,
    examples: MessageLog,
    *,
    window: float,
    last: Sync | None,
) -> Accounts:
    """Read all logs, and count by keys.

    Args:
        features: names of the columns.
        impressions: log of impressions.
        actions: log of clicks.
        examples: log of the joined examples.
        window: seconds of event time after which an impression must have its example.
        last: the last sync.
    """
    key, time = features.key, features.time
    shown = {row[key]: row[time] for row in _rows(impressions)}
    newest = max(shown.values(), default=0)
    due = {each for each, when in shown.items() if when < newest - window}
    joined = [row[key] for row in _rows(examples)]
    return Accounts(
        impressions=len(shown),
        clicks=sum(1 for _ in _rows(actions)),
        examples=len(joined),
        due=len(due),
        lost=len(due.difference(joined)),
        repeated=len(joined) - len(set(joined)),
        read=last.position[0] if last else 0,
        trained=last.trained if last else 0,
    )


def _rows(log: MessageLog) -> Iterator[JsonObject]:
    """Yield all messages of a log as objects."""
    position = log.start()
    while messages := log.read(position, most=4096):
        position = messages[-1].after
        yield from (json.loads(message.value) for message in messages)
