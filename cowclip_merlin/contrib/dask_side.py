"""What runs inside a Dask worker: it starts a worker process, follows it and ends it.

`Client.run` calls these functions. The child belongs to the Dask worker's process: Linux kills it
when that process ends. If the launcher does not ask for a while, a thread kills it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from cowclip_merlin.launcher.call import visible_gpus
from cowclip_merlin.launcher.local import WORKER, Child
from cowclip_merlin.system.processes import free_ports

if TYPE_CHECKING:
    from distributed import Worker

_LEASE = 60.0
"""Seconds without a question of the launcher after which a child is killed."""

_PAUSE = 0.1


@dataclass(frozen=True)
class Place:
    """What a Dask worker offers.

    Attributes:
        gpus: the GPUs that it sees, as in `CUDA_VISIBLE_DEVICES`.
        missing: the first of the asked folders that it does not see; None: it sees all.
    """

    gpus: list[str]
    missing: str | None


@dataclass(frozen=True)
class Report:
    """What happened to a child since the last question.

    Attributes:
        code: exit code; None while it runs.
        output: new bytes of standard output.
        errors: new bytes of standard error.
        tail: the last lines, once it has ended.
    """

    code: int | None
    output: bytes
    errors: bytes
    tail: str


class _LeasedChild:
    """A child that is killed when nobody asks for it any more."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.child = Child(command, environment)
        self.asked = time.monotonic()

    def guard(self, forget: Callable[[], None]) -> None:
        """Wait until the child has ended, or is killed and forgotten."""
        while self.child.poll() is None:
            if time.monotonic() - self.asked > _LEASE:
                forget()
                return
            time.sleep(1.0)


def _children(dask_worker: Worker) -> dict[str, _LeasedChild]:
    """Return the children of a Dask worker by the attempt that they belong to."""
    return dask_worker.__dict__.setdefault("cowclip_children", {})


def describe_place(folders: Sequence[str]) -> Place:
    """Say which GPUs and folders this Dask worker sees."""
    missing = next((folder for folder in folders if not os.path.isdir(folder)), None)
    return Place(visible_gpus(os.environ), missing)


def find_ports(counts: Mapping[str, int], dask_worker: Worker) -> list[int]:
    """Return as many free ports as `counts` has for this Dask worker's address."""
    return free_ports(counts[dask_worker.address])


def start_child(
    attempt: str,
    command: Sequence[str] | None,
    environments: Mapping[str, Mapping[str, str]],
    dask_worker: Worker,
) -> None:
    """Start the child of an attempt, with the variables for this Dask worker's address."""
    words = command or [sys.executable, *WORKER]
    child = _LeasedChild(words, environments[dask_worker.address])
    _children(dask_worker)[attempt] = child
    forget = partial(end_child, attempt, dask_worker)
    threading.Thread(target=child.guard, args=(forget,), daemon=True).start()


async def follow_child(attempt: str, seconds: float, shown: bool, dask_worker: Worker) -> Report:
    """Wait until the child has ended or written something, but at most so many seconds.

    Args:
        attempt: the attempt.
        seconds: to wait at most.
        shown: whether the user sees its output; otherwise only its end is of interest.
        dask_worker: the Dask worker, which Dask adds.
    """
    leased = _children(dask_worker)[attempt]
    until = time.monotonic() + seconds
    while True:
        leased.asked = time.monotonic()
        code = leased.child.poll()  # first: what it wrote before its end is then complete
        written = shown and leased.child.has_output()
        if code is not None or written or time.monotonic() > until:
            output, errors = leased.child.new_output() if shown else (b"", b"")
            return Report(code, output, errors, leased.child.tail() if code else "")
        await asyncio.sleep(_PAUSE)


def signal_child(attempt: str, number: int, dask_worker: Worker) -> None:
    """Send the child a signal if it still runs."""
    if attempt in _children(dask_worker):
        _children(dask_worker)[attempt].child.send(number)


def end_child(attempt: str, dask_worker: Worker) -> None:
    """Kill the child if it still runs, and forget it."""
    with suppress(KeyError):
        _children(dask_worker).pop(attempt).child.close()
