"""A log in a folder: append-only files of messages, for any number of writers and readers.

Each file is named after the number of messages that were appended before it:

    FOLDER/00000000000000000000.log
    FOLDER/00000000000000350123.log

A message survives the death of its writer as soon as `append` returns. Linux writes it to the disk
some seconds later, so a power failure may cost the newest messages. What a killed writer left at
the end of a file is not read, and the next writer replaces it. A damaged message before others is
an error: a mark, its length and a checksum precede each.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import re
import struct
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.logs.message_log import (
    LogUnavailable,
    Message,
    MessageLog,
    MessagesLost,
    Position,
    numbers_of,
)

SEGMENT_BYTES = 1 << 26
"""Size of a file from which on a new one begins."""

_PAUSE = 0.005  # seconds between two looks for new messages
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

MARK = b"\xc0msg"
"""Begins each message; no UTF-8 text contains its first byte, and a file of zeros no mark."""

_HEADER = struct.Struct("<4sII")  # mark, length, checksum
_HEADER_SIZE = _HEADER.size
_FIRST_READ, _MOST_READ = 1 << 16, 1 << 20


class FileLog(MessageLog):
    """A log in a folder. A position is (messages before it, name of its file, offset there).

    Args:
        folder: of the log.
        create: make the folder if it is not there.
        segment_bytes: size of a file from which on a new one begins.

    Raises:
        InputError: the folder is missing, is a file, or holds files that are not those of a log;
            later also: a file is damaged.

    >>> import tempfile
    >>> log = FileLog(tempfile.mkdtemp())
    >>> after = log.append([b"a", b"b"])
    >>> [message.value for message in log.read(log.start(), most=10)], after == log.end()
    ([b'a', b'b'], True)
    """

    def __init__(
        self, folder: str | Path, *, create: bool = True, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        self.name, self._folder = str(folder), Path(folder)
        self._segment_bytes = segment_bytes
        if self._folder.exists() and not self._folder.is_dir():
            raise InputError(f"{folder}: is a file; give the folder of a log")
        if create:
            self._folder.mkdir(parents=True, exist_ok=True)
        elif not self._folder.exists():
            raise InputError(f"{folder}: no such folder; check the path, or start the writer first")
        for path in self._folder.iterdir():
            if not re.fullmatch(r"\d{20}\.log", path.name):
                raise InputError(f"{folder}: holds {path.name!r}; give the folder of a log")
        self._end: Position | None = None  # as far as this object has seen
        self._torn: tuple[int, int, int] | None = None  # file, offset, size: known as not damaged

    def append(self, values: Sequence[bytes]) -> Position:
        """Append messages; they survive the death of this process when this returns."""
        data = pack(values)
        with self._locked(fcntl.LOCK_EX):
            self._end = self._find_end()
            self._refuse_damage(self._end)
            count, segment, offset = self._end
            if offset >= self._segment_bytes:
                segment, offset = count, 0
            self._write(segment, offset, data)
            self._end = (count + len(values), segment, offset + len(data))
            return self._end

    def read(self, position: Position, most: int, wait: float = 0.0) -> list[Message]:
        """Read messages after a position; wait for the first one so many seconds."""
        until = time.monotonic() + wait
        while True:
            found = self._read(position, most)
            if found:
                return found
            self._check(position)
            if not self._wait_for_more(position, until):
                return found

    def start(self) -> Position:
        """Return the place before the oldest message."""
        first = min(self._segments(), default=0)
        return first, first, 0

    def end(self) -> Position:
        """Return the place after the newest complete message."""
        self._end = self._find_end()
        self._check(self._end)
        return self._end

    def trim(self, position: Position) -> None:
        """Remove the files all of whose messages are before a position."""
        segments = sorted(self._segments())
        for segment, following in itertools.pairwise(segments):
            if following <= position[0]:
                with suppress(FileNotFoundError):  # another process trims, too
                    self._file(segment).unlink()

    def _write(self, segment: int, offset: int, data: bytes) -> None:
        """Write all of the data, or nothing if the disk is full."""
        target = os.open(self._file(segment), os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            os.ftruncate(target, offset)  # a writer that was killed may have left a part
            if data:
                os.posix_fallocate(target, offset, len(data))  # no reader sees half of the data
            _write_all(target, data, offset)
        except OSError as error:
            os.ftruncate(target, offset)
            if error.errno not in _FULL:
                raise
            reason = os.strerror(error.errno or 0).lower()
            raise LogUnavailable(f"{self.name}: nothing appended: {reason}; make room") from None
        finally:
            os.close(target)

    def _find_end(self) -> Position:
        last = max(self._segments(), default=0)
        end = self._end
        if end is None or end[1] != last:
            end = (last, last, 0)
        for message in self._messages(end):
            end = message.after
        return end

    def _read(self, position: Position, most: int) -> list[Message]:
        found: list[Message] = []
        while len(found) < most:
            for message in self._messages(position):
                found.append(message)
                position = message.after
                if len(found) == most:
                    return found
            count, segment, _ = position
            # A file ends where the next one begins, which is named after its first message.
            if count == segment or not self._file(count).exists():
                return found
            position = (count, count, 0)
        return found

    def _messages(self, position: Position) -> Iterator[Message]:
        """Complete messages of one file after a position."""
        count, segment, offset = numbers_of(self.name, position, 3)
        target = self._open(position)
        if target is None:
            return
        try:
            for value in values_from(target, offset):
                count, offset = count + 1, offset + _HEADER_SIZE + len(value)
                yield Message((count, segment, offset), value)
        finally:
            os.close(target)

    def _open(self, position: Position) -> int | None:
        """Open the file of a position; None if no message was ever there.

        Raises:
            MessagesLost: the file is gone, or shorter than the position.
        """
        count, segment, offset = position
        try:
            target = os.open(self._file(segment), os.O_RDONLY)
        except FileNotFoundError:
            start = self.start()
            if self._file(count).exists() or position == (0, 0, 0) == start:
                return None
            raise MessagesLost(
                f"{self.name}: begins at message {start[0]:,}, but message {count:,} is asked for; "
                "the log was trimmed or replaced"
            ) from None
        if os.fstat(target).st_size < offset:
            os.close(target)
            raise MessagesLost(
                f"{self.name}: ends before message {count:,}, which was there; the log was replaced"
            )
        return target

    def _check(self, position: Position) -> None:
        """Refuse a damaged file, at a place after which no message could be read.

        While a writer appends, its messages look like damage: look again later.
        """
        count, segment, _ = position
        if count > segment and self._file(count).exists():
            position = (count, count, 0)
        if self._is_clean(position):
            return
        with suppress(BlockingIOError), self._locked(fcntl.LOCK_SH | fcntl.LOCK_NB):
            if not self._read(position, 1):
                self._refuse_damage(position)

    def _wait_for_more(self, position: Position, until: float) -> bool:
        """Wait while nothing comes after a position, at a glance; False if it is too late."""
        count, segment, offset = position
        here, following = str(self._file(segment)), str(self._file(count))
        while time.monotonic() < until:
            time.sleep(_PAUSE)
            try:
                at_end = os.stat(here).st_size == offset
            except FileNotFoundError:
                at_end = False
            if not at_end or os.path.exists(following):
                return True
        return False

    def _is_clean(self, position: Position) -> bool:
        """Whether the newest file ends at a position, or with a part that is known."""
        _, segment, offset = position
        try:
            size = self._file(segment).stat().st_size
        except FileNotFoundError:  # not written yet, or trimmed since
            return True
        known = size == offset or self._torn == (segment, offset, size)
        return known and segment == max(self._segments(), default=segment)

    def _refuse_damage(self, position: Position) -> None:
        """Refuse a file with messages after a place where none can be read; needs the lock."""
        count, segment, offset = position
        later = segment < max(self._segments(), default=segment)
        if later and count > segment and self._file(count).exists():
            return
        try:  # after the look for the next file: `trim` removes this one first
            target = os.open(self._file(segment), os.O_RDONLY)
        except FileNotFoundError:
            return
        try:
            size = os.fstat(target).st_size
            if later or (size > offset and has_message(target, offset)):
                raise InputError(
                    f"{self._file(segment)}: damaged at byte {offset}: message {count:,} cannot be "
                    "read, but later ones are there; restore the file, or start a new log"
                )
        finally:
            os.close(target)
        self._torn = (segment, offset, size)

    def _segments(self) -> list[int]:
        return [int(path.stem) for path in self._folder.glob("*.log")]

    def _file(self, segment: int) -> Path:
        return self._folder / f"{segment:020d}.log"

    @contextmanager
    def _locked(self, kind: int) -> Iterator[None]:
        """Keep writers out, of this process and of others; `LOCK_SH` lets readers in."""
        target = os.open(self._folder, os.O_RDONLY)
        try:
            try:
                fcntl.flock(target, kind)
            except BlockingIOError:
                raise
            except OSError as error:
                raise InputError(
                    f"{self.name}: its disk has no locks ({error.strerror}), so two writers would "
                    "damage the log; use a local disk, Redis or Kafka"
                ) from None
            yield
        finally:
            os.close(target)


def _write_all(target: int, data: bytes, offset: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(target, rest, offset)
        rest, offset = rest[written:], offset + written


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
            place += _HEADER_SIZE + len(value)
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
    if len(data) - place < _HEADER_SIZE:
        return None
    mark, length, checksum = _HEADER.unpack_from(data, place)
    place += _HEADER_SIZE
    value = data[place : place + length]
    whole = mark == MARK and len(value) == length and _checksum(value) == checksum
    return value if whole else None


def _checksum(value: bytes) -> int:
    """The CRC-32, begun with the length: a mark and zeros must not be an empty message."""
    return zlib.crc32(value, len(value) + 1)
