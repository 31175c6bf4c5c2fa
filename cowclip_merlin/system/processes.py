"""Child processes in groups of their own, and free ports of this machine."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, TypeVar

from cowclip_merlin.errors import InputError

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


def free_ports(count: int) -> list[int]:
    """Return different TCP ports of this machine that nobody uses now.

    Another program may take one before the caller does.

    >>> ports = free_ports(3)
    >>> len(set(ports))
    3
    """
    with ExitStack() as stack:  # hold all of them until the last is found
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in found:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in found]


def cannot_listen(host: str, port: int, error: Exception, remedy: str) -> InputError:
    """Return the error for an address of this machine that a server cannot have.

    >>> str(cannot_listen("::1", 80, OSError(13, "Permission denied"), "give another `port`"))
    'cannot listen at ::1 port 80: Permission denied; give another `port`'
    """
    reason = getattr(error, "strerror", None) or error
    return InputError(f"cannot listen at {host} port {port}: {reason}; {remedy}")


def check_host(host: str, what: str) -> None:
    """Refuse a text that can be neither a host's name nor its address, before anything asks for it.

    Args:
        host: the name or the address.
        what: beginning of the error.

    Raises:
        InputError: Python cannot encode it, as a part of it is empty or too long.

    >>> check_host("::1", "--host")
    >>> check_host("a..b", "--host")
    Traceback (most recent call last):
    ...
    cowclip_merlin.errors.InputError: --host: 'a..b' is no host name; use 1 to 63 letters a part
    """
    try:
        host.encode("idna")
    except UnicodeError:
        raise InputError(f"{what}: {host!r} is no host name; use 1 to 63 letters a part") from None


def is_own_host(header: str, names: Collection[str]) -> bool:
    """Whether a request's header `Host` can name this server.

    A page from elsewhere reaches a server behind a browser if its own name leads to that server's
    address for a moment (DNS rebinding). Its requests then have its name, never an address.

    Args:
        header: `HOST` or `HOST:PORT`; "" if the request has none, as those of browsers always have.
        names: that lead to this server besides `localhost`, in any case; "*" for all.

    >>> [is_own_host(each, ["ctr.example"]) for each in ("127.0.0.1:80", "[::1]", "CTR.example.")]
    [True, True, True]
    >>> is_own_host("evil.example:80", ["ctr.example"]), is_own_host("evil.example", ["*"])
    (False, True)
    """
    bracketed = header.startswith("[")
    name = header[1:].partition("]")[0] if bracketed else header.partition(":")[0]
    name = name.lower().removesuffix(".")
    if not header or name == "localhost" or {"*", name} & {each.lower() for each in names}:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
