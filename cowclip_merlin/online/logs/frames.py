"""Messages in a file: a mark, length and checksum before each, so that damage is noticed."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Iterator

MARK = b"\xc0msg"
"""Begins each message; no UTF-8 text contains its first byte, and a file of zeros no mark."""

_HEADER = struct.Struct("<4sII")  # mark, length, checksum
_FIRST_READ, _MOST_READ = 1 << 16, 1 << 20


def pack(values: Iterable[bytes]) -> bytes:
    """Return messages as the bytes of a file.

    >>> len(pack([b"a", b"bc"])) == size_of(b"a") + size_of(b"bc")
    True
    """
    return b"".join(_HEADER.pack(MARK, len(x), _checksum(x)) + x for x in values)


def size_of(value: bytes) -> int:
    """Return the number of bytes that a message takes in a file."""
    return _HEADER.size + len(value)


def values_from(target: int, offset: int) -> Iterator[bytes]:
    """Yield the messages of an open file from an offset on, up to the first incomplete one."""
    size = _FIRST_READ
    while data := os.pread(target, size, offset):
        place = 0
        while (value := _value_at(data, place)) is not None:
            yield value
            place += size_of(value)
        offset += place
        if place:
            size = min(2 * size, _MOST_READ)
        else:  # the message is longer than what was read, or not complete
            size = _size_at_start(data)
            if not len(data) < size <= os.fstat(target).st_size - offset:
                return


def has_message(target: int, offset: int) -> bool:
    """Look for a complete message that begins anywhere after an offset of an open file."""
    data = os.pread(target, max(os.fstat(target).st_size - offset, 0), offset)
    place = data.find(MARK)
    while place >= 0:
        if _value_at(data, place) is not None:
            return True
        place = data.find(MARK, place + 1)
    return False


def _size_at_start(data: bytes) -> int:
    """The bytes of the message at the start, of which a part may be there; 0 if it has no mark."""
    if len(data) < _HEADER.size:
        return 0
    mark, length, _ = _HEADER.unpack_from(data)
    return _HEADER.size + length if mark == MARK else 0


def _value_at(data: bytes, place: int) -> bytes | None:
    """The message at a place; None if it is not complete."""
    if len(data) - place < _HEADER.size:
        return None
    mark, length, checksum = _HEADER.unpack_from(data, place)
    place += _HEADER.size
    value = data[place : place + length]
    whole = mark == MARK and len(value) == length and _checksum(value) == checksum
    return value if whole else None


def _checksum(value: bytes) -> int:
    """The CRC-32, begun with the length: a mark and zeros must not be an empty message."""
    return zlib.crc32(value, len(value) + 1)
