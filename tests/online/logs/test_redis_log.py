"""Logs in Redis: servers that die, hang, forget or refuse; TLS; entries of other programs."""

import shutil
import subprocess
import threading
import time

import pytest
from log_servers import RedisServer, find_redis
from redis import exceptions

from cowclip_merlin.errors import InputError
from cowclip_merlin.online import open_log
from cowclip_merlin.online.logs.message_log import LogRefused, LogUnavailable, MessagesLost
from cowclip_merlin.online.logs.redis_log import log_error
from cowclip_merlin.system.processes import free_ports

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(
        find_redis() is None, reason="redis-server is missing: apt-get install redis-server"
    ),
]


@pytest.fixture
def server(tmp_path):
    """A server of its own, which a test may kill."""
    made = RedisServer(tmp_path)
    yield made
    made.kill()


def client(server, **more):
    import redis

    return redis.Redis(port=server.port, **more)


@pytest.mark.parametrize("flush", ["no", "always"])
def test_a_killed_server_comes_back_with_all_that_it_acknowledged(server, flush):
    client(server).config_set("appendfsync", flush)
    log, acknowledged = open_log(server.url("a"), create=True), []

    def write():
        try:
            for number in range(10**6):
                acknowledged.append((log.append([b"%d" % number]), number))
        except LogUnavailable as error:
            acknowledged.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    until = time.monotonic() + 60
    while len(acknowledged) < 100 and time.monotonic() < until:
        time.sleep(0.001)
    server.kill()
    writer.join(60)
    *acknowledged, error = acknowledged
    assert isinstance(error, LogUnavailable) and len(acknowledged) >= 100
    for call in (log.end, log.start, lambda: log.append([b"x"]), lambda: log.read((0, 0, 0), 1)):
        started = time.monotonic()
        with pytest.raises(LogUnavailable, match=rf"^redis://127.0.0.1:{server.port}/a: "):
            call()
        assert time.monotonic() - started < 60
    server.start()
    found = log.read(log.start(), 10**6)  # the same object
    values = [(message.after, int(message.value)) for message in found]
    assert values[: len(acknowledged)] == acknowledged and len(values) <= len(acknowledged) + 1
    assert log.append([b"more"])[0] == len(values) + 1
    log.close()


def test_a_server_that_forgot_its_messages_is_noticed(server):
    log = open_log(server.url("a"), create=True)
    place = log.append([b"a", b"b"])
    client(server).flushall()
    for _ in range(2):
        with pytest.raises(MessagesLost, match="message 2 is asked for"):
            log.read(place, 1)
        log.append([b"c"])  # the second time there are as many messages as before
    assert [m.value for m in log.read(log.start(), 5)] == [b"c", b"c"]
    log.append([b"d"] * 5)
    log.trim(log.end())
    with pytest.raises(MessagesLost, match="begins at message 7"):
        log.read(place, 1)
    log.close()


def test_places_stay_right_when_the_server_writes_its_file_anew(server):
    log = open_log(server.url("a"), create=True)
    places = [log.append([b"%d" % number]) for number in range(9)]
    log.trim(places[3])
    redis = client(server)
    redis.bgrewriteaof()
    until = time.monotonic() + 60
    while redis.info("persistence")["aof_rewrite_in_progress"] and time.monotonic() < until:
        time.sleep(0.01)
    start, end = log.start(), log.end()
    server.kill()
    server.start()
    assert (log.start(), log.end()) == (start, end) and start[0] == 4 and end == places[8]
    found = log.read(places[4], 99)
    assert [(m.after, m.value) for m in found] == [(places[i], b"%d" % i) for i in range(5, 9)]


def test_a_place_of_another_log_trims_nothing(server):
    log, other = (open_log(server.url(name), create=True) for name in "ab")
    log.append([b"a"])
    with pytest.raises(MessagesLost, match="nothing trimmed"):
        log.trim(other.append([b"b", b"c"]))  # two: the clock may be the same
    assert log.start() == (0, 0, 0) and len(log.read(log.start(), 9)) == 1


def test_entries_of_other_programs_are_messages(server):
    redis = client(server)
    for number in range(5):
        redis.xadd("a:b", {"value": number, "more": "x"})
    log = open_log(server.url("a:b"))
    assert [m.value for m in log.read(log.start(), 9)] == [b"0", b"1", b"2", b"3", b"4"]
    assert log.end()[0] == 5
    redis.set("text", "x")
    with pytest.raises(LogRefused, match="text: is not a stream"):
        open_log(server.url("text"))


def test_full_memory_is_unavailable_and_names_no_message(server):
    log = open_log(server.url("a"), create=True)
    client(server).config_set("maxmemory", 1)
    with pytest.raises(LogUnavailable, match="maxmemory") as told:
        log.append([b"secret message"])
    assert "secret" not in str(told.value)
    client(server).config_set("maxmemory", 0)
    assert log.append([b"a"])[0] == 1


def test_rights_and_logins_that_are_taken_away_are_refused(server):
    client(server).execute_command("ACL SETUSER me on >word ~* +@all")
    log = open_log(server.url("a").replace("//", "//me:word@"), create=True)
    place = log.append([b"a"])
    client(server).execute_command("ACL SETUSER me -xadd")
    with pytest.raises(LogRefused, match="check the user's rights"):
        log.append([b"a"])
    client(server).execute_command("ACL DELUSER me")  # ends its connections
    with pytest.raises(LogRefused, match="check user and password"):
        try:
            log.read(place, 1)
        except LogUnavailable:  # the end of the connection may be seen before the refused login
            log.read(place, 1)
    with pytest.raises(LogRefused, match=r"DB index .*; check db="):
        open_log(server.url("a") + "?db=999")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (exceptions.AuthenticationError("invalid username-password pair"), LogRefused),
        (exceptions.NoPermissionError("no permissions to run 'xadd'"), LogRefused),
        (exceptions.ResponseError("WRONGTYPE Operation against a key"), LogRefused),
        (exceptions.ResponseError("unknown command 'XADD'"), LogRefused),
        (exceptions.ConnectionError("Error 111 connecting to h:1"), LogUnavailable),
        (exceptions.TimeoutError("Timeout reading from socket"), LogUnavailable),
        (exceptions.BusyLoadingError("Redis is loading"), LogUnavailable),
        (exceptions.ReadOnlyError("You can't write against a read only replica."), LogUnavailable),
        (exceptions.ResponseError("MISCONF Redis is configured to save"), LogUnavailable),
    ],
    ids=lambda value: str(value)[:20],
)
def test_the_kind_of_an_error_says_whether_waiting_helps(error, kind):
    told = log_error("redis://h/a", error)
    assert type(told) is kind and str(told).startswith("redis://h/a: ")


def test_passwords_are_used_and_not_shown(tmp_path):
    server = RedisServer(tmp_path, "--requirepass", "p@ss word")
    try:
        address = f"127.0.0.1:{server.port}/a"
        log = open_log(f"redis://:p%40ss%20word@{address}?db=3", create=True)
        assert log.name == f"redis://{address}" and log.append([b"a"])[0] == 1
        for wrong in ("redis://", "redis://:wr0ng@", "redis://me:wr0ng@"):
            with pytest.raises(LogRefused, match="check user and password") as told:
                open_log(f"{wrong}{address}")
            assert "wr0ng" not in str(told.value)
        with pytest.raises(InputError, match="no such stream"):
            open_log(f"redis://:p%40ss%20word@{address}")  # of database 0
    finally:
        server.kill()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is missing")
def test_tls(tmp_path):
    names = {name: str(tmp_path / f"{name}.pem") for name in ("key", "certificate")}
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-keyout", names["key"], "-out", names["certificate"], "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    server = RedisServer(tmp_path)
    tls = str(free_ports(1)[0])
    server.kill()
    server.options = (
        "--tls-port", tls, "--tls-cert-file", names["certificate"], "--tls-key-file",
        names["key"], "--tls-auth-clients", "no",
    )  # fmt: skip
    server.start()
    if server.process.poll() is not None:
        pytest.skip("this redis-server has no TLS")
    try:
        url = f"rediss://127.0.0.1:{tls}/a"
        log = open_log(f"{url}?ssl_ca_certs={names['certificate']}", create=True)
        assert log.append([b"a"])[0] == 1
        with pytest.raises(LogRefused, match="certificates and ssl_ca_certs"):
            open_log(url)
        with pytest.raises(InputError, match=r"none\.pem"):
            open_log(f"{url}?ssl_ca_certs=none.pem")
    finally:
        server.kill()
