"""Positions in a log of several partitions, and the one order of messages between two of them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence

from cowclip_merlin.online.logs.message_log import Message, Position


def in_order(messages: Sequence[Message]) -> Sequence[int]:
    """Return the indices of messages in their one order, whoever reads them, and in which order.

    They are ordered by the times at which they were appended, then by their places and partitions.
    A message that is older than the one before it in its partition counts as just as new, so each
    partition keeps its order. Messages of a log in one order stay as they are.

    Args:
        messages: those of a partition in its order.

    >>> given = ((9, 1, 1), (7, 0, 1), (8, 0, 2))
    >>> in_order([Message((), b"", time, part, place) for time, part, place in given])
    [1, 2, 0]
    """
    if not messages or messages[0].partition is None:
        return range(len(messages))
    newest: dict[int, int] = {}
    keys = []
    for i, message in enumerate(messages):
        part = message.partition or 0
        time = newest[part] = max(newest.get(part, 0), message.time or 0)
        keys.append((time, message.place, part, i))
    return [i for *_, i in sorted(keys)]


def merged(heads: Iterable[Iterable[Message]]) -> Iterator[Message]:
    """Yield messages, given those of each partition, in the order of `in_order`."""

    def keyed(head: Iterable[Message]) -> Iterator[tuple[int, int, int, Message]]:
        newest = 0
        for message in head:
            newest = max(newest, message.time or 0)
            yield newest, message.place, message.partition or 0, message

    return (message for *_, message in heapq.merge(*map(keyed, heads)))


def positions(position: Position, messages: Iterable[Message]) -> Iterator[Position]:
    """Yield the position after each of some messages in their order, which follow a position.

    >>> given = ((7, 0, 1), (8, 0, 2), (9, 1, 1))
    >>> list(positions((0,), [Message((), b"", *each) for each in given]))
    [(1,), (2,), (3, 2, 1)]
    """
    places: list[int] = []
    for message in messages:
        if message.partition is None:
            yield message.after
            continue
        places = places or places_of(position)
        places += [0] * (1 + message.partition - len(places))
        places[message.partition] = message.place
        yield position_of(places)


def position_after(position: Position, messages: Sequence[Message]) -> Position:
    """Return the position after the last of such messages; the given one if there are none."""
    if not messages or messages[0].partition is None:
        return messages[-1].after if messages else position
    newest = {message.partition or 0: message.place for message in messages}
    places = places_of(position, 1 + max(newest))
    for partition, place in newest.items():
        places[partition] = place
    return position_of(places)


def position_of(places: Sequence[int]) -> Position:
    """Return the position at a place in each partition.

    >>> position_of([7, 0, 2, 0]), position_of([7, 0])
    ((9, 7, 0, 2), (7,))
    """
    begun = len(places)
    while begun > 1 and not places[begun - 1]:
        begun -= 1
    return (places[0],) if begun == 1 else (sum(places), *places[:begun])


def places_of(position: Position, partitions: int = 1) -> list[int]:
    """Return the place in each partition; in those that are not begun, up to so many, 0.

    Raises:
        ValueError: it is no such position.
    """
    count, *places = position
    if len(places) == 1 or (places and sum(places) != count):
        raise ValueError(f"{position} is no position in partitions")
    places = places or [count]
    return places + [0] * (partitions - len(places))


def are_within(messages: Sequence[Message], until: Position) -> list[bool]:
    """Return which messages are before a position, in their partitions.

    >>> are_within([Message((), b"", 0, 1, place) for place in (3, 4)], (5, 2, 3))
    [True, False]
    """
    if not messages or messages[0].partition is None:
        return [message.after[0] <= until[0] for message in messages]
    places = places_of(until, 1 + max(message.partition or 0 for message in messages))
    return [message.place <= places[message.partition or 0] for message in messages]
