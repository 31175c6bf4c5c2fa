"""Positions in a log of several partitions, and the one order of messages between two of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cowclip_merlin.online.logs.message_log import Message, Position


class Ordered(NamedTuple):
    """Messages in the order of `in_order`.

    Attributes:
        indices: of the messages.
        after: the position after each of them.
    """

    indices: Sequence[int]
    after: Sequence[Position]


def in_order(position: Position, messages: Sequence[Message]) -> Ordered:
    """Order the messages that follow a position, whoever reads them, and in which order.

    They are ordered by the times at which they were appended, then by their places and partitions.
    A message that is older than the one before it in its partition counts as just as new, so each
    partition keeps its order. Messages of a log in one order stay as they are.

    Args:
        position: before the first of them in each partition.
        messages: those of a partition in its order.

    >>> given = ((9, 1, 1), (7, 0, 1), (8, 0, 2))
    >>> in_order((0,), [Message((), b"", time, part, place) for time, part, place in given])
    Ordered(indices=[1, 2, 0], after=[(1,), (2,), (3, 2, 1)])
    """
    if not messages or messages[0].partition is None:
        return Ordered(range(len(messages)), [message.after for message in messages])
    newest: dict[int, int] = {}
    keys = []
    for i, message in enumerate(messages):
        part = message.partition or 0
        time = newest[part] = max(newest.get(part, 0), message.time or 0)
        keys.append((time, message.place, part, i))
    keys.sort()
    places, after = places_of(position, 1 + max(newest)), []
    for _, place, part, _ in keys:
        places[part] = place
        after.append(position_of(places))
    return Ordered([i for *_, i in keys], after)


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
