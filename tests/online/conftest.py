"""Servers of logs."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


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
