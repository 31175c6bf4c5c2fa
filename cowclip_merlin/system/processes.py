"""Child processes: start one in a group of its own, wait for it, and end all of its group."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TypeVar

_T = TypeVar("_T")

_GUARD = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
if os.getppid() != int(sys.argv[1]):
    os._exit(1)  # the parent has ended before prctl
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""Program that becomes the child, and asks Linux to kill it when its parent ends.

The parent cannot do this by `preexec_fn`, which is not safe in a process with threads.
"""


def start(
    command: Sequence[str | Path],
    *,
    stdout: int | IO[bytes],
    stderr: int | IO[bytes] = subprocess.STDOUT,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process that does not outlive this one.

    Call it in a thread that lives as long as this process: Linux counts the end of that thread
    as the end of the parent. The process is the first of a new group. So Ctrl-C in a terminal
    reaches its parent alone, and `kill_group` also reaches what it has started.

    Args:
        command: program and arguments; a program that is missing ends with code 1.
        stdout: a file or `subprocess.PIPE`.
        stderr: as `stdout`, which also takes it by default.
        environment: all variables of the process; None: those of this one.
        folder: in which it works; None: that of this process.
    """
    guard = [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid())]
    return subprocess.Popen(
        [*guard, *map(str, command)],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        env=environment,
        cwd=folder,
    )


def wait_for(
    condition: Callable[[], _T], process: subprocess.Popen[bytes], seconds: float
) -> _T | None:
    """Ask a condition until its answer is true.

    Args:
        condition: is asked often.
        process: to stop waiting when it ends.
        seconds: to wait at most.

    Returns:
        The answer; None if the process has ended, or the time is over.
    """
    until = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < until:
        if answer := condition():
            return answer
        time.sleep(0.02)
    return None


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process of `start` and all that it has started, also after its own end.

    It may still run for a moment: wait for it.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def wait_or_kill(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait until a process of `start` ends; then, or after so many seconds, kill its group."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(max(seconds, 0.0))
    kill_group(process)
    process.wait()
