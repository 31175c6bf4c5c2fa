"""A log in a folder: append-only files of messages, for any number of writers and readers.

Each file is named after the number of messages that were appended before it:

    FOLDER/00000000000000000000.log
    FOLDER/00000000000000350123.log

A message is its length and its CRC-32 as little-endian 32-bit numbers, and then its bytes. A
message survives the death of its writer as soon as `append` returns. Linux writes it to the disk
some seconds later, so a power failure may cost the newest messages.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import struct
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.logs.message_log import Message, MessagesLost, Position

SEGMENT_BYTES = 1 << 26
"""Size of a file from which on a new one begins."""

_HEADER = struct.Struct("<II")  # length, CRC-32
_READ_AT_ONCE = 1 << 20
_PAUSE = 0.005  # seconds between two looks for new messages


class FileLog:
    """A log in a folder. A position is (messages before it, name of its file, offset there).

    Args:
        folder: of the log.
        create: make the folder if it is not there.
        segment_bytes: size of a file from which on a new one begins.

    Raises:
        InputError: the folder is missing, is a file, or holds files that are not those of a log.

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

    def append(self, values: Sequence[bytes]) -> Position:
        """Append messages; they survive the death of this process when this returns."""
        data = b"".join(_HEADER.pack(len(x), zlib.crc32(x)) + x for x in values)
        with self._locked():
            count, segment, offset = self.end()
            if offset >= self._segment_bytes:
                segment, offset = count, 0
            target = os.open(self._file(segment), os.O_WRONLY | os.O_CREAT, 0o666)
            try:
                os.ftruncate(target, offset)  # a writer that was killed may have left a part
                _write_all(target, data, offset)
            finally:
                os.close(target)
            self._end = (count + len(values), segment, offset + len(data))
            return self._end

    def read(self, position: Position, most: int, wait: float = 0.0) -> list[Message]:
        """Read messages after a position; wait for the first one so many seconds."""
        until = time.monotonic() + wait
        while True:
            found = self._read(position, most)
            if found or time.monotonic() >= until:
                return found
            time.sleep(_PAUSE)

    def start(self) -> Position:
        """Return the place before the oldest message."""
        first = min(self._segments(), default=0)
        return first, first, 0

    def end(self) -> Position:
        """Return the place after the newest complete message."""
        last = max(self._segments(), default=0)
        if self._end is None or self._end[1] != last:
            self._end = (last, last, 0)
        for message in self._messages(self._end):
            self._end = message.after
        return self._end

    def trim(self, position: Position) -> None:
        """Remove the files all of whose messages are before a position."""
        segments = sorted(self._segments())
        for segment, following in itertools.pairwise(segments):
            if following <= position[0]:
                with suppress(FileNotFoundError):  # another process trims, too
                    self._file(segment).unlink()

    def close(self) -> None:
        """Do nothing: no file stays open between calls."""

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
        count, segment, offset = position
        for value in _values_after(self._open(position), offset):
            count, offset = count + 1, offset + _HEADER.size + len(value)
            yield Message((count, segment, offset), value)

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

    def _segments(self) -> list[int]:
        return [int(path.stem) for path in self._folder.glob("*.log")]

    def _file(self, segment: int) -> Path:
        return self._folder / f"{segment:020d}.log"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other writers out, of this process and of others."""
        target = os.open(self._folder, os.O_RDONLY)
        try:
            fcntl.flock(target, fcntl.LOCK_EX)
            yield
        finally:
            os.close(target)


def _write_all(target: int, data: bytes, offset: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(target, rest, offset)
        rest, offset = rest[written:], offset + written


def _values_after(target: int | None, offset: int) -> Iterator[bytes]:
    """Complete messages of an open file from an offset on; closes the file."""
    if target is None:
        return
    try:
        size = _READ_AT_ONCE
        while data := os.pread(target, size, offset):
            place = 0
            while (value := _value_at(data, place)) is not None:
                yield value
                place += _HEADER.size + len(value)
            if not place:  # the message is longer than what was read, or not complete
                if len(data) < size:
                    return
                size *= 2
            offset += place
    finally:
        os.close(target)


def _value_at(data: bytes, place: int) -> bytes | None:
    """The message at a place; None if it is not complete."""
    if len(data) - place < _HEADER.size:
        return None
    length, checksum = _HEADER.unpack_from(data, place)
    place += _HEADER.size
    value = data[place : place + length]
    return value if len(value) == length and zlib.crc32(value) == checksum else None
