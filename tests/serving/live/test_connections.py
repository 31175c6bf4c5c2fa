"""Connections that send or read nothing end, are few, and name this server."""

import asyncio
import contextlib
import socket
import threading
import time
from unittest.mock import Mock

import pytest
from http_clients import URL, ask, request, running, until_closed
from uvicorn.server import ServerState

from cowclip_merlin.errors import InputError
from cowclip_merlin.serving.live import process
from cowclip_merlin.serving.live.follower import Follower
from cowclip_merlin.serving.live.settings import Listening, ServingLimits

SHORT = ServingLimits(timeout=0.4, idle_timeout=0.4, max_connections=12)
HEAD = b"GET /ready HTTP/1.1\r\nHost: a\r\n"
BODY = (
    b"POST /v1/predict HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    b"Content-Length: 9999\r\n\r\n{"
)


@pytest.fixture(scope="module")
def follower():
    return Follower(lambda: None)


@pytest.fixture(scope="module")
def port(follower):
    with running(follower, SHORT, names=["a"]) as made:
        yield made


@contextlib.contextmanager
def connected(port, sent=b""):
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(sent)
        yield connection


def drip(connection, data):
    """Send a byte each 0.05 s, until the other end has closed."""
    with contextlib.suppress(OSError):
        for _ in range(200):
            connection.sendall(data)
            time.sleep(0.05)


SLOW = {
    # what was sent, what goes on to come, what the answers begin with
    "nothing": (b"", b"", b""),
    "half a line": (b"GET /rea", b"", b""),
    "half of the headers": (HEAD, b"", b""),
    "endless slow headers": (HEAD + b"A: ", b"b", b""),
    "an empty line now and then": (b"", b"\r\n", b"HTTP/1.1 400"),
    "a body that is late": (BODY, b"", b"HTTP/1.1 408"),
    "a slow body": (BODY, b" ", b"HTTP/1.1 408"),
    "a slow body that nobody reads": (HEAD + BODY[-25:-1], b" ", b"HTTP/1.1 503"),
    "nothing after a request": (HEAD + b"\r\n", b"", b"HTTP/1.1 503"),
    "half a request after one": (HEAD + b"\r\n" + HEAD, b"", b"HTTP/1.1 503"),
    "slow headers after a request": (HEAD + b"\r\n", b"G", b"HTTP/1.1 503"),
}


@pytest.mark.parametrize("what", SLOW)
def test_slow_clients_are_cut(port, what):
    sent, more, answer = SLOW[what]
    with connected(port, sent) as connection:
        thread = threading.Thread(target=drip, args=(connection, more))
        if more:
            thread.start()
        found = until_closed(connection)
        assert found.startswith(answer) and bool(found) == bool(answer)
        if more:
            thread.join()


def test_a_client_that_never_reads_is_cut(follower):
    """It asks for more than the buffers of both ends can hold."""
    limits = ServingLimits(timeout=0.2, idle_timeout=0.3, max_connections=1)
    with running(follower, limits, names=["a"]) as port, contextlib.ExitStack() as stack:
        connection = stack.enter_context(socket.socket())
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", port))
        connection.settimeout(0.5)
        with contextlib.suppress(OSError):  # the server stops reading, and then cuts
            for _ in range(2000):
                connection.sendall(b"GET /docs HTTP/1.1\r\nHost: a\r\n\r\n" * 20)
        deadline = time.monotonic() + 20
        while ask_or_none(port) != 503:  # the only place is free again
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_client_that_does_not_read_the_last_response_is_cut():
    """uvicorn closes an idle connection only when all of its bytes are gone."""

    async def run():
        config = process.http_config(lambda: None, SHORT, None, access_log=False)
        made = config.http(config=config, server_state=ServerState(), app_state={})
        made.connection_made(transport := Mock(**{"is_closing.return_value": False}))
        made.on_response_complete()
        for _ in range(500):
            if transport.abort.called:
                break
            await asyncio.sleep(0.02)
        return [name for name, *_ in transport.method_calls if name in ("close", "abort")]

    assert asyncio.run(run()) == ["close", "abort"]


def ask_or_none(port):
    with contextlib.suppress(OSError):
        return ask(port, request("/ready"))[0]
    return None


def test_requests_with_pauses_are_answered(follower):
    """The limits are of waiting, not of a connection's life."""
    limits = ServingLimits(timeout=1, idle_timeout=1)
    with running(follower, limits, names=["a"]) as port, connected(port) as connection:
        for _ in range(8):
            for part in (HEAD[:9], HEAD[9:], b"\r\n"):
                connection.sendall(part)
                time.sleep(0.05)
            answer = b""
            while not answer.endswith(b"}"):  # head and body may come apart
                answer += connection.recv(9999) or pytest.fail("closed")
            assert answer.startswith(b"HTTP/1.1 503")
            time.sleep(0.1)


def test_more_connections_than_the_limit_are_closed_at_once(follower):
    limits = ServingLimits(timeout=60, max_connections=3)
    with running(follower, limits) as port, contextlib.ExitStack() as stack:
        kept = [stack.enter_context(connected(port, HEAD)) for _ in range(3)]
        with connected(port) as connection:
            assert until_closed(connection) == b""
        for connection in kept:
            connection.close()
        deadline = time.monotonic() + 20
        while ask_or_none(port) != 503:
            assert time.monotonic() < deadline


def test_more_connections_than_the_system_allows_are_one_line(monkeypatch):
    monkeypatch.setattr(process.resource, "getrlimit", lambda _: (1024, 4096))
    process._check_connections(ServingLimits(max_connections=924))
    with pytest.raises(InputError, match=r"max_connections is 925, .* at most 924, or raise"):
        process._check_connections(ServingLimits(max_connections=925))


OURS = ("127.0.0.1:8000", "localhost", "LOCALHOST:80", "[::1]:8000", "10.1.2.3", "a", "A.:80", "")
OTHERS = (
    "evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example",
    "a.evil.example", "[evil.example]", "::1", "evil.example@127.0.0.1", "*", "a,evil.example",
)  # fmt: skip


@pytest.mark.parametrize("path", ["/", "/ready", "/v1/status", URL, "/nothing"])
def test_other_names_in_host_are_refused(port, path):
    """As those of a page elsewhere whose name leads to this machine for a moment."""
    for host in OURS:
        assert ask(port, request(path, host=host))[0] in (200, 404, 405, 503), host
    for host in OTHERS:
        status, body = ask(port, request(path, host=host))
        assert status == 421 and b"--allowed-hosts" in body and host.encode() in body, host


def test_any_name_may_be_allowed(follower):
    with running(follower, SHORT, names=["*"]) as port:
        assert ask(port, request("/", host="any.example"))[0] == 200
    assert Listening(host="ctr.example", allowed_hosts=["b"]).names == ("ctr.example", "b")
