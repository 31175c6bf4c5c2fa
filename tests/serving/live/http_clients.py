"""Clients of the application, an application behind uvicorn in a thread, raw connections to it."""

import socket
import threading
import time
from contextlib import contextmanager

import uvicorn
from starlette.testclient import TestClient

from cowclip_merlin.serving.live.http import make_app
from cowclip_merlin.serving.live.process import http_config
from cowclip_merlin.serving.live.settings import ServingLimits

LIMITS = ServingLimits(max_body_bytes=4000, max_batch=8, timeout=60.0, max_requests=4)
URL = "/v1/predict"


def client_of(follower, limits=LIMITS, token=None, log_name="a log"):
    app = make_app(follower, limits, log_name=log_name, token=token)
    return TestClient(app, "http://localhost", raise_server_exceptions=False)


@contextmanager
def running(follower, limits, tls=None, **options):
    """Yield the port."""
    app = make_app(follower, limits, log_name="a log", **options)
    server = uvicorn.Server(http_config(app, limits, tls, access_log=False))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(timeout=30)
    assert not thread.is_alive()


def request(target, method="GET", *headers, host="127.0.0.1", body=b""):
    """The bytes of a request; the target may be any bytes."""
    target = target.encode() if isinstance(target, str) else target
    lines = [f"{method} ".encode() + target + b" HTTP/1.1", f"Host: {host}".encode()]
    lines += [b"Connection: close", b"Content-Length: %d" % len(body)]
    return b"\r\n".join([*lines, *(each.encode() for each in headers), b"", body])


def ask(port, data):
    """Status and body of the answer to some bytes; (0, b"") if there is none."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(data)
        answer = until_closed(connection)
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]) if head else 0, body


def until_closed(connection, seconds=10):
    """All that a connection gives until its other end closes it; fails if that takes longer."""
    answer, end = b"", time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            connection.settimeout(max(end - time.monotonic(), 0.01))
            part = connection.recv(1 << 16)
            if not part:
                return answer
            answer += part
    except ConnectionResetError:
        return answer
    except TimeoutError:
        pass
    raise AssertionError(f"still open after {seconds} s, with {answer[:80]!r}")
