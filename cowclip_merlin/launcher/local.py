"""Start the worker processes of a training on this machine; none outlives this one."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from typing import IO

from cowclip_merlin.launcher.call import (
    TERMINAL,
    WorkerCall,
    one_gpu_each,
    visible_gpus,
    worker_environment,
)
from cowclip_merlin.launcher.watch import Ended, Outcome, Patience, watch
from cowclip_merlin.system.processes import free_ports, kill_group, start

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


WORKER = ("-m", "cowclip_merlin.launcher.worker")
"""Arguments of Python that start a worker."""


class _LocalProcess:
    """A worker on this machine."""

    def __init__(self, rank: int, child: Child) -> None:
        self._rank, self._child = rank, child
        self.new_output, self.send = child.new_output, child.send

    def poll(self) -> Ended | None:
        """Return how it ended; None while it runs."""
        code = self._child.poll()
        if code is None:
            return None
        return Ended(self._rank, socket.gethostname(), code, self._child.tail() if code else "")


def run_locally(
    call: WorkerCall, *, workers: int, command: Sequence[str] | None, patience: Patience
) -> Outcome:
    """Run one attempt of a training on this machine; return how its workers ended.

    Args:
        call: the training.
        workers: number of processes.
        command: program and arguments of a worker; None: `cowclip_merlin.launcher.worker`.
        patience: how long the launcher waits.

    Raises:
        InputError: if there are fewer GPUs than workers.
    """
    visible = [visible_gpus(os.environ)] * workers
    gpus = one_gpu_each(visible, call.device, "this machine")
    addresses = [f"127.0.0.1:{port}" for port in free_ports(workers)]
    with ExitStack() as stack:
        processes = []
        for rank in range(workers):
            environment = worker_environment(call, addresses, rank, gpus[rank])
            if rank == 0:
                environment |= _terminal()
            child = Child(command or [sys.executable, *WORKER], environment)
            stack.enter_context(closing(child))
            processes.append(_LocalProcess(rank, child))
        return watch(processes, patience)


def _terminal() -> dict[str, str]:
    """Return the variables that let worker 0 show its progress bar in our terminal."""
    if not sys.stderr.isatty():
        return {}
    return {TERMINAL: "1", "COLUMNS": str(os.get_terminal_size(sys.stderr.fileno()).columns)}
