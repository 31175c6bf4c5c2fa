"""Servers of logs, and a features file."""

import sys
from pathlib import Path

import pytest

from cowclip_merlin.online import load_features

sys.path.insert(0, str(Path(__file__).parent))

FEATURES = """\
label: click
time: time
key: request
categorical:
- user
- {name: item, ttl: 5d, admit: 2}
continuous:
- price
- {name: age, transform: none, minimum: 0, maximum: 100}
"""


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory):
    """A Redis for tests that do not end it; `url(NAME)` is the address of a stream."""
    from log_servers import RedisServer

    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture(scope="session")
def kafka_server(tmp_path_factory):
    """A Kafka broker for tests that do not end it; `url(NAME)` is the address of a topic."""
    from log_servers import KafkaServer

    server = KafkaServer(tmp_path_factory.mktemp("kafka"))
    yield server
    server.kill()


@pytest.fixture
def features_file(tmp_path):
    """Writes a features file and reads it."""

    def make(text=FEATURES, name="f.yaml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return load_features(path)

    return make
