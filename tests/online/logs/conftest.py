"""All kinds of log, each as a function that opens a log at a new address or an old one."""

import itertools
import sys
from pathlib import Path

import pytest
from fake_kafka import Broker, Producer

from cowclip_merlin.online import FileLog, open_log

sys.path.insert(0, str(Path(__file__).parent))

NUMBERS = itertools.count()


class Kind:
    """Opens logs of one kind; `trims` says whether its server can; examples for hypothesis."""

    in_one_piece = True  # `trim` leaves the last messages; it may leave others in partitions

    def __init__(self, new_url, *, trims=True, examples=20):
        self.new_url, self.trims, self.examples = new_url, trims, examples

    def open(self, url, create=False):
        if "://" in url:
            return open_log(url, create=create)
        return FileLog(url, create=create, segment_bytes=500)  # so that there are several files


class PartitionsKind(Kind):
    """Opens topics of three partitions, which get messages in turn."""

    in_one_piece = False

    def __init__(self, broker, new_url):
        super().__init__(new_url)
        self.broker = broker

    def open(self, url, create=False):
        if create and (name := url.rpartition("/")[2]) not in self.broker.topics:
            self.broker.make(name, 3)
        with pytest.MonkeyPatch.context() as patch:  # other kinds of this session need the library
            self.broker.install(patch)
            log = open_log(url, create=create, several=True)
        log._producer = Producer(self.broker)
        return log


SERVERS = [pytest.param(name, marks=pytest.mark.system) for name in ("redis", "kafka")]


@pytest.fixture(scope="session", params=["files", "partitions", *SERVERS])
def kind(request, tmp_path_factory):
    if request.param == "files":
        base = tmp_path_factory.mktemp("logs")
        return Kind(lambda: str(base / f"log-{next(NUMBERS)}"))
    if request.param == "partitions":
        return PartitionsKind(Broker(), lambda: f"kafka://h/log-{next(NUMBERS)}")
    server = request.getfixturevalue(f"{request.param}_server")
    # tansu 0.6.0 has no DeleteRecords; the first message of a producer takes half a second.
    more = {"trims": False, "examples": 4} if request.param == "kafka" else {}
    return Kind(lambda: server.url(f"log-{next(NUMBERS)}"), **more)


@pytest.fixture
def topic(kafka_server):
    """Gives the address of a new topic."""
    return lambda: kafka_server.url(f"topic-{next(NUMBERS)}")


@pytest.fixture
def impatient(monkeypatch):
    """Makes clients of Kafka give up soon."""
    from cowclip_merlin.online.logs import kafka_log

    return lambda: monkeypatch.setattr(kafka_log, "TIMEOUT", 0.7)
