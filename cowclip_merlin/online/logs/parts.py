"""Messages in parts of a limited size, for servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def in_parts(values: Sequence[bytes], *, most: int, most_bytes: int) -> Iterator[Sequence[bytes]]:
    """Yield messages in parts; a message that is larger than a part is one by itself.

    Args:
        values: messages.
        most: number of messages of a part at most.
        most_bytes: bytes of the messages of a part at most.

    >>> list(in_parts([b"aa", b"bb", b"c", b"ddddd"], most=2, most_bytes=4))
    [[b'aa', b'bb'], [b'c'], [b'ddddd']]
    """
    first = size = 0
    for i, value in enumerate(values):
        if i > first and (i - first == most or size + len(value) > most_bytes):
            yield values[first:i]
            first, size = i, 0
        size += len(value)
    if first < len(values):
        yield values[first:]
