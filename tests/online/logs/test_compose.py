"""The compose file of servers: what it says is whole, and Redis takes its options."""

import re
import subprocess

import pytest
import yaml
from log_servers import ROOT, RedisServer, find_redis

pytestmark = pytest.mark.system

FILE = ROOT / "containers/compose.online.yaml"
COMPOSE = yaml.safe_load(FILE.read_text())


@pytest.mark.parametrize("name", ["redis", "kafka"])
def test_a_server_is_pinned_checked_and_kept(name):
    service = COMPOSE["services"][name]
    assert re.fullmatch(r"[\w/]+:\d+\.\d+\.\d+", service["image"])
    assert service["healthcheck"]["test"][0] == "CMD"
    ((volume, _),) = (each.split(":") for each in service["volumes"])
    assert volume in COMPOSE["volumes"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_kafka_keeps_its_messages_in_the_volume_and_advertises_what_it_publishes():
    kafka = COMPOSE["services"]["kafka"]
    settings = kafka["environment"]
    assert kafka["volumes"][0].endswith(":" + settings["KAFKA_LOG_DIRS"])
    ((host, outside, inside),) = (port.rsplit(":", 2) for port in kafka["ports"])
    assert f"HOST://{host}:{outside}" in settings["KAFKA_ADVERTISED_LISTENERS"].split(",")
    listeners = dict(x.split("://:") for x in settings["KAFKA_LISTENERS"].split(","))
    assert listeners["HOST"] == inside == outside
    pairs = settings["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(",")
    assert set(listeners) == {pair.split(":")[0] for pair in pairs}
    voter = f"{settings['KAFKA_NODE_ID']}@kafka:{listeners['CONTROLLER']}"
    assert settings["KAFKA_CONTROLLER_QUORUM_VOTERS"] == voter


@pytest.mark.skipif(find_redis() is None, reason="redis-server is missing")
def test_redis_takes_the_options_and_writes_a_file(tmp_path):
    import redis

    program, *options = COMPOSE["services"]["redis"]["command"]
    assert program == "valkey-server"
    server = RedisServer(tmp_path, *options)
    try:
        client = redis.Redis(port=server.port, decode_responses=True, protocol=2)
        wanted = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}
        for name, value in wanted.items():
            assert client.config_get(name) == {name: value}
        assert client.config_get("save") == {"save": ""}
    finally:
        server.kill()


def test_compose_accepts_the_file():
    command = ["docker", "compose"]
    try:
        found = subprocess.run([*command, "version"], capture_output=True).returncode == 0
    except FileNotFoundError:
        found = False
    if not found:
        pytest.skip("docker compose is missing")
    done = subprocess.run([*command, "-f", str(FILE), "config", "-q"], capture_output=True)
    assert done.returncode == 0, done.stderr
