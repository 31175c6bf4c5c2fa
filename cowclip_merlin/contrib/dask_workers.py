"""Start the workers of a training on a running Dask cluster, one in each Dask worker."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import uuid4

from cowclip_merlin.contrib import dask_side
from cowclip_merlin.errors import InputError
from cowclip_merlin.launcher.call import WorkerCall, one_gpu_each, worker_environment
from cowclip_merlin.launcher.watch import Ended, Outcome, Patience, watch
from cowclip_merlin.system.dask_client import connect

if TYPE_CHECKING:
    from distributed import Client

_FOLLOW = 10.0
"""Seconds that a question for news may take. Every question is a line in the Dask worker's log."""


class _DaskProcess:
    """A worker in a Dask worker; a thread asks for its news."""

    def __init__(self, rank: int, address: str, client: Client, attempt: str) -> None:
        self._rank, self._address, self._client, self._attempt = rank, address, client, attempt
        self._news: queue.SimpleQueue[dask_side.Report | None] = queue.SimpleQueue()
        self._output, self._ended = [b"", b""], None
        _in_background(self._follow)

    def _follow(self) -> None:
        """Put all reports into the queue; None after the last if the Dask worker is lost."""
        while True:
            try:
                report = self._run(dask_side.follow_child, _FOLLOW, self._rank == 0)
            except Exception:  # whatever it is, nothing more can be known about this worker
                self._news.put(None)
                return
            self._news.put(report)
            if report.code is not None:
                return

    def _run(self, function: Callable[..., Any], *args: Any) -> Any:
        found = self._client.run(function, self._attempt, *args, workers=[self._address])
        return found[self._address]

    def poll(self) -> Ended | None:
        """Return how it ended; None while it runs."""
        while self._ended is None and not self._news.empty():
            report = self._news.get()
            if report is None:
                self._ended = Ended(self._rank, host_of(self._address), None)
                break
            self._output[0] += report.output
            self._output[1] += report.errors
            if report.code is not None:
                host = host_of(self._address)
                self._ended = Ended(self._rank, host, report.code, report.tail)
        return self._ended

    def new_output(self) -> tuple[bytes, bytes]:
        """Return what came to standard output and standard error since the last call."""
        output, errors = self._output
        self._output = [b"", b""]
        return output, errors

    def send(self, number: int) -> None:
        """Send it a signal, without waiting for a machine that does not answer."""
        _in_background(self._send, number)
        if number == signal.SIGKILL:
            _in_background(self._give_up)

    def _send(self, number: int) -> None:
        with suppress(Exception):
            self._run(dask_side.signal_child, number)

    def _give_up(self) -> None:
        time.sleep(5.0)
        self._news.put(None)


def _in_background(function: Callable[..., None], *args: Any) -> None:
    # A daemon: a call to a machine that does not answer must not keep this program alive.
    threading.Thread(target=function, args=args, daemon=True).start()


def run_on_dask(
    call: WorkerCall,
    *,
    scheduler: str,
    workers: int | None,
    command: Sequence[str] | None,
    patience: Patience,
    wait: float = 0.0,
) -> Outcome:
    """Run one attempt of a training on a Dask cluster; return how its workers ended.

    Args:
        call: the training.
        scheduler: address of the running scheduler.
        workers: number of Dask workers to use; None: all.
        command: program and arguments of a worker; None: `cowclip_merlin.launcher.worker`.
        patience: how long the launcher waits.
        wait: seconds to wait for Dask workers that are starting again.

    Raises:
        InputError: if no scheduler answers, it has too few workers, or they lack GPUs or folders.
    """
    call = call.with_absolute_paths()
    with connect(scheduler, default=False) as client:
        chosen = choose_workers(client, scheduler, workers, wait)
        environments = _environments(client, call, chosen)
        with _children(client, chosen, command, environments) as attempt:
            processes = [
                _DaskProcess(rank, address, client, attempt) for rank, address in enumerate(chosen)
            ]
            return watch(processes, patience)


def choose_workers(client: Client, scheduler: str, workers: int | None, wait: float) -> list[str]:
    """Return the addresses of the first Dask workers; neighbors are on the same machine.

    Raises:
        InputError: if there are too few after so many seconds.
    """
    until = time.monotonic() + wait
    while True:
        found = sorted(client.scheduler_info()["workers"])
        if len(found) >= (workers or 1):
            return found[:workers]
        if time.monotonic() > until:
            break
        time.sleep(0.5)
    remedy = f"start more, or use `workers` {len(found)}" if found else "start some"
    raise InputError(
        f"`scheduler` {scheduler}: the Dask cluster has {len(found)} workers, but the training "
        f"needs {workers or 'at least 1'}; {remedy}"
    )


def _environments(
    client: Client, call: WorkerCall, chosen: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Return the variables of every worker by the address of its Dask worker."""
    places = _describe(client, call, chosen)
    ports = _ports(client, chosen)
    addresses = [f"{host_of(each)}:{ports[each]}" for each in chosen]
    gpus: dict[str, str] = {}
    for host, there in by_host(chosen).items():
        visible = [places[each].gpus for each in there]
        gpus.update(zip(there, one_gpu_each(visible, call.device, host), strict=True))
    return {
        each: worker_environment(call, addresses, rank, gpus[each])
        for rank, each in enumerate(chosen)
    }


def _describe(
    client: Client, call: WorkerCall, chosen: Sequence[str]
) -> dict[str, dask_side.Place]:
    # The run folder is made later, in a folder that must be there.
    folders = [call.data, _existing_parent(call.out)]
    try:
        places = client.run(dask_side.describe_place, folders, workers=list(chosen))
    except Exception as error:  # Dask does not keep the type of an error in an import
        raise InputError(
            f"`scheduler`: the Dask workers cannot use cowclip_merlin ({error}); install the same "
            "version there"
        ) from error
    for address in chosen:
        if places[address].missing:
            raise InputError(
                f"{places[address].missing}: the Dask worker {address} does not see this folder; "
                "use a file system that all machines share"
            )
    return places


def _existing_parent(path: str) -> str:
    while not os.path.isdir(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path


def _ports(client: Client, chosen: Sequence[str]) -> dict[str, int]:
    """Return a free port for every Dask worker, different for those of one machine."""
    hosts = by_host(chosen)
    counts = Counter({there[0]: len(there) for there in hosts.values()})
    found = client.run(dask_side.find_ports, dict(counts), workers=list(counts))
    return {
        address: port
        for there in hosts.values()
        for address, port in zip(there, found[there[0]], strict=True)
    }


@contextmanager
def _children(
    client: Client,
    chosen: Sequence[str],
    command: Sequence[str] | None,
    environments: dict[str, dict[str, str]],
) -> Iterator[str]:
    """Start all children, and kill what still runs when the block ends; yield the attempt."""
    attempt = uuid4().hex
    try:
        _start(client, chosen, attempt, command, environments)
        yield attempt
    finally:
        with suppress(Exception):  # a Dask worker without its launcher ends the child by itself
            alive = set(client.scheduler_info()["workers"])
            there = [address for address in chosen if address in alive]
            client.run(dask_side.end_child, attempt, workers=there, on_error="ignore")


def _start(client: Client, chosen: Sequence[str], *args: object) -> None:
    """Start all children; a Dask worker that ends before it answers is found lost later.

    Raises:
        Exception: a Dask worker could not start its child.
    """
    from distributed.comm import CommClosedError

    answers = client.run(dask_side.start_child, *args, workers=list(chosen), on_error="return")
    for address, answer in answers.items():
        failed = isinstance(answer, Exception) and not isinstance(answer, CommClosedError)
        if failed and address in client.scheduler_info()["workers"]:
            raise answer


def host_of(address: str) -> str:
    """Return the host of a Dask worker's address, as TensorFlow needs it.

    >>> host_of("tcp://10.0.0.5:41234"), host_of("tcp://[::1]:41234")
    ('10.0.0.5', '[::1]')
    """
    host = urlsplit(address).hostname or "localhost"
    return f"[{host}]" if ":" in host else host


def by_host(addresses: Sequence[str]) -> dict[str, list[str]]:
    """Group the addresses of Dask workers by host.

    >>> by_host(["tcp://a:1", "tcp://b:1", "tcp://a:2"])
    {'a': ['tcp://a:1', 'tcp://a:2'], 'b': ['tcp://b:1']}
    """
    hosts: dict[str, list[str]] = {}
    for address in addresses:
        hosts.setdefault(host_of(address), []).append(address)
    return hosts
