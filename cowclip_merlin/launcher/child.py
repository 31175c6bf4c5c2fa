"""One worker process: start it, read its output, send it signals; it never outlives this one."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO

from cowclip_merlin.system.processes import kill_group, start

_TAIL = 16_384
"""Bytes at the end of an output that are kept for messages."""


class Child:
    """A worker process with its output.

    Start it in a thread that lives as long as this process: Linux counts the end of that thread
    as the end of the parent.

    Args:
        command: program and arguments.
        environment: variables that are added to those of this process.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        # Files without names: nothing is left behind, and the process never waits for a reader.
        self._files: list[IO[bytes]] = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115
        self._read = [0, 0]
        self._popen = start(
            command,
            stdout=self._files[0],
            stderr=self._files[1],
            environment={**os.environ, **environment},
        )

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._popen.pid

    def poll(self) -> int | None:
        """Return the exit code, negative after a signal; None while the process runs."""
        return self._popen.poll()

    def has_output(self) -> bool:
        """Whether `new_output` would return anything."""
        return any(
            os.fstat(file.fileno()).st_size > read
            for file, read in zip(self._files, self._read, strict=True)
        )

    def new_output(self) -> tuple[bytes, bytes]:
        """Return what came to standard output and standard error since the last call."""
        return self._next(0), self._next(1)

    def _next(self, which: int) -> bytes:
        file = self._files[which].fileno()
        # pread: the position of the file is that of the process, which writes there.
        found = os.pread(file, os.fstat(file).st_size - self._read[which], self._read[which])
        self._read[which] += len(found)
        return found

    def tail(self) -> str:
        """Return the end of standard error, or of standard output if that is empty."""
        for file in reversed(self._files):
            size = os.fstat(file.fileno()).st_size
            found = os.pread(file.fileno(), _TAIL, max(size - _TAIL, 0))
            if found.strip():
                return found.decode("utf-8", errors="replace")
        return ""

    def send(self, number: int) -> None:
        """Send the process a signal; with SIGKILL, also to the processes that it has started."""
        if number == signal.SIGKILL:
            kill_group(self._popen)
        else:
            self._popen.send_signal(number)

    def close(self) -> None:
        """Kill what still runs, and release the output."""
        kill_group(self._popen)
        self._popen.wait()
        for file in self._files:
            file.close()
