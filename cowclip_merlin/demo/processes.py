"""Start, watch and end processes whose output goes to files."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cowclip_merlin.errors import InputError
from cowclip_merlin.system.machine import resident_megabytes
from cowclip_merlin.system.processes import start, wait_or_kill

_PATIENCE = 20.0
"""Seconds that a process has to end after SIGTERM before it is killed."""


_HIDDEN = ("COWCLIP_TOKEN",)
"""Variables that the processes do not get: their servers are for the demo alone."""


class Process:
    """One process, whose output goes to a file; `may_finish`: it may end by itself, with success.

    A process that is started again appends to its file.
    """

    def __init__(
        self, name: str, command: Sequence[str], log: Path, *, may_finish: bool = False
    ) -> None:
        self.name, self.log, self.may_finish = name, log, may_finish
        self._command = list(command)
        self._popen: subprocess.Popen[bytes] | None = None
        self._meant_to_end = False

    def start(self) -> None:
        """Start the process, or start it again."""
        self._meant_to_end = False
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            environment = {k: v for k, v in os.environ.items() if k not in _HIDDEN}
            self._popen = start(self._command, stdout=output, environment=environment)

    @property
    def is_running(self) -> bool:
        """Whether the process has been started and has not ended."""
        return self._popen is not None and self._popen.poll() is None

    @property
    def megabytes(self) -> float:
        """Memory that it has now; 0 if it does not run."""
        if not self.is_running:
            return 0.0
        import psutil

        with contextlib.suppress(psutil.Error):  # it may end at any moment
            return resident_megabytes(self._popen.pid)
        return 0.0

    def kill(self) -> None:
        """Kill it with SIGKILL, as a crash of its machine would."""
        self._meant_to_end = True
        self._popen.send_signal(signal.SIGKILL)
        self._popen.wait()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the process within the block, as a very slow machine would."""
        self._popen.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._popen.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Ask it to end."""
        self._meant_to_end = True
        if self.is_running:
            self._popen.send_signal(signal.SIGTERM)

    def wait(self, seconds: float = _PATIENCE) -> None:
        """Wait until it has ended, or kill it after so many seconds; then end what it left."""
        if self._popen is not None:
            wait_or_kill(self._popen, seconds)

    def check(self) -> None:
        """Raise an `InputError` with its last line if it has ended although nobody asked it to."""
        if self._popen is None or self.is_running or self._meant_to_end:
            return
        if self._popen.returncode == 0 and self.may_finish:
            return
        raise InputError(
            f"{self.name} ended with code {self._popen.returncode}: {last_line(self.log)}; see "
            f"{self.log}"
        )


class Processes:
    """All processes of the demo, as a context that ends them; `logs` takes their output."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self.all: list[Process] = []

    def start(self, name: str, command: Sequence[str], *, may_finish: bool = False) -> Process:
        """Start a process; the arguments are those of `Process`."""
        process = Process(name, command, self._logs / f"{name}.log", may_finish=may_finish)
        self.all.append(process)
        process.start()
        return process

    def start_cowclip(self, name: str, *arguments: str, may_finish: bool = False) -> Process:
        """Start a command of `cowclip` with the Python of this process."""
        command = [sys.executable, "-m", "cowclip_merlin", *arguments]
        return self.start(name, command, may_finish=may_finish)

    def check(self) -> None:
        """Raise an `InputError` if one has ended although nobody asked it to."""
        for process in self.all:
            process.check()

    def wait_until(self, what: str, condition: Callable[[], bool], seconds: float = 600) -> None:
        """Wait until a condition is true, or say what has ended, or took too long."""
        until = time.monotonic() + seconds
        while not condition():
            self.check()
            if time.monotonic() > until:
                raise InputError(f"waited {seconds:.0f} s for {what}; see {self._logs}")
            time.sleep(0.05)

    def __enter__(self) -> Processes:
        """Return this object."""
        return self

    def __exit__(self, *_: object) -> None:
        """End all processes, the last one first; at once if another signal comes meanwhile."""
        until = time.monotonic() + _PATIENCE
        try:
            for process in reversed(self.all):
                process.end()
            for process in reversed(self.all):
                process.wait(until - time.monotonic())
        finally:
            for process in self.all:
                process.wait(0.0)


def last_line(log: Path) -> str:
    """Return the last line of a file that is not empty, cut to a sensible length."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.exists() else []
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "no output")
