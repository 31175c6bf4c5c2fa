"""A server as its own process: it follows a log, refuses what is too much, and ends in order."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from server_process import ServerProcess
from sync_logs import ListLog

from cowclip_merlin.cli import main
from cowclip_merlin.online.logs.message_log import LogRefused
from cowclip_merlin.serving.live import process
from cowclip_merlin.serving.live.follower import Follower

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def made(tmp_path_factory, small_settings, features, events):
    from published import publish

    folder = tmp_path_factory.mktemp("process")
    return publish(folder, small_settings, features, events.filter(slice(0, 256)))


@pytest.fixture(scope="module")
def server(made):
    limits = ("--max-body-bytes", 3000, "--timeout", 2, "--max-requests", 8)
    with ServerProcess(made.log.name, *limits) as running:
        running.wait_for(lambda: running.get("/ready"))
        yield running


@pytest.mark.quick
def test_it_serves_what_was_synced_last(made, server, rows, events):
    assert server.host == "127.0.0.1"
    for sync in range(2):
        made.train(events.filter(slice(256 * (sync + 1), 256 * (sync + 2))))
        made.sync(auc=0.7)
        wanted = made.trainer.predict(events.filter(slice(0, 9)))
        trained = made.trained
        server.wait_for(lambda t=trained: server.get("/v1/status")["model"]["trained"] == t)
        status, answer = server.predict(rows[:9])
        assert status == 200 and answer["model"]["trained"] == made.trained
        assert answer["predictions"] == pytest.approx(wanted.tolist(), abs=1e-6)


HEAD = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
ATTACKS = {
    "no HTTP": ((b"\x00\xff" * 2000 + b"\r\n\r\n",), b"400"),
    "endless headers": ((b"GET / HTTP/1.1\r\n", *[b"A: " + b"b" * 8000 + b"\r\n"] * 200), b"400"),
    "an endless header": ((b"GET / HTTP/1.1\r\nA: ", *[b"b" * 65_000] * 50), b"400"),
    "an endless address": ((b"GET /", *[b"b" * 65_000] * 50), b"400"),
    "two lengths": ((HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",), b"400"),
    "length and parts": (
        (HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",),
        b"400",
    ),
    "wrong parts": ((HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n{}\r\n0\r\n\r\n",), b"40"),
    "a length of petabytes": ((HEAD + b"Content-Length: 9999999999999999\r\n\r\n{",), b"413"),
    "endless parts": (
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[b"400\r\n" + b" " * 1024 + b"\r\n"] * 99),
        b"413",
    ),
    "half a body": ((HEAD + b'Content-Length: 100\r\n\r\n{"events"',), b"408"),
}


@pytest.mark.parametrize("what", ATTACKS)
def test_wrong_connections_are_closed_and_the_server_goes_on(server, rows, what):
    parts, status = ATTACKS[what]
    answer, cut = server.raw(*parts)
    # A client that goes on to send may lose the answer, since the connection is closed.
    assert (cut and len(parts) > 1) or answer.startswith(b"HTTP/1.1 " + status)
    assert server.predict(rows[:1])[0] == 200


def test_clients_that_leave_free_their_places(server, rows):
    """Twenty requests whose clients go away before the answer, at eight places."""
    body = json.dumps({"events": rows[:1]}).encode()
    for i in range(20):
        with socket.create_connection((server.host, server.port)) as connection:
            connection.sendall(HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode())
            connection.sendall(body[: len(body) // (1 + i % 2)])
    server.wait_for(lambda: server.get("/v1/status")["requests"]["running"] == 0, 30)
    assert server.predict(rows[:1])[0] == 200


def test_slow_bodies_do_not_keep_others_out_for_ever(server, rows):
    """Places are taken by clients that send nothing, and free again after the time-out."""
    waiting = [socket.create_connection((server.host, server.port)) for _ in range(8)]
    for connection in waiting:
        connection.sendall(HEAD + b"Content-Length: 100\r\n\r\n")
    server.wait_for(lambda: server.get("/v1/status")["requests"]["running"] == 8)
    status, answer = server.predict(rows[:1])
    assert status == 503 and "8 requests are running" in answer["error"]
    server.wait_for(lambda: server.predict(rows[:1])[0] == 200, 30)
    for connection in waiting:
        assert connection.recv(100).startswith(b"HTTP/1.1 408")
        connection.close()


def test_a_port_in_use_and_a_wrong_token_are_one_line(tmp_path, capsys, monkeypatch):
    log = tmp_path / "sync"
    log.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["online", "serve", "--from", str(log), "--port", port]) == 2
    assert "give another --port" in capsys.readouterr().err
    monkeypatch.setenv("COWCLIP_TOKEN", "two words")
    assert main(["online", "serve", "--from", str(log)]) == 2
    assert "COWCLIP_TOKEN: the token " in capsys.readouterr().err


def test_a_missing_package_is_one_line(tmp_path):
    """Whichever of the packages it is."""
    (tmp_path / "sync").mkdir()
    for name in ("uvicorn", "fastapi", "prometheus_client"):
        script = (
            f"import sys; sys.modules[{name!r}] = None; from cowclip_merlin.cli import main; "
            f"sys.exit(main(['online', 'serve', '--from', {str(tmp_path / 'sync')!r}]))"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=120,
            env={**os.environ},
        )  # fmt: skip
        assert done.returncode == 2, done.stderr
        assert "pip install 'cowclip-merlin[online]'" in done.stderr.splitlines()[-1]


def test_a_server_from_its_start_to_its_end(tmp_path, new_run, rows):
    """Before its trainer, with a token, and until a signal while a request is running."""
    (tmp_path / "sync").mkdir()
    (tmp_path / "token").write_text("s3cret\n")
    token = {"Authorization": "Bearer s3cret"}
    with ServerProcess(tmp_path / "sync", "--token-file", tmp_path / "token") as server:
        assert server.predict(rows[:1])[0] == 401 and server.get("/v1/status", ok=()) is None
        status, answer = server.predict(rows[:1], **token)
        assert status == 503 and "no snapshot yet" in answer["error"]
        new_run(tmp_path)
        server.wait_for(lambda: server.get("/v1/status", **token)["model"])
        assert server.get("/ready") == {"ready": True}
        answer = answer_after_signal(server, rows, signal.SIGTERM)
        assert answer.startswith(b"HTTP/1.1 200") and b'"predictions"' in answer
        assert server.process.wait(timeout=300) == 128 + signal.SIGTERM
    assert not any("Traceback" in line for line in server.lines), server.lines


def answer_after_signal(server, rows, number):
    """What a request gets whose body comes after the signal."""
    token, body = {"Authorization": "Bearer s3cret"}, json.dumps({"events": rows[:1]}).encode()
    head = HEAD + f"Authorization: Bearer s3cret\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection((server.host, server.port), timeout=60) as connection:
        connection.sendall(head + body[:9])
        server.wait_for(lambda: server.get("/v1/status", **token)["requests"]["running"] == 1)
        server.process.send_signal(number)
        time.sleep(0.3)
        connection.sendall(body[9:])
        answer = b""
        while part := connection.recv(4096):
            answer += part
    return answer


@pytest.fixture
def refusing():
    """A log that refuses, or does so later."""
    log = ListLog()
    log.away = LogRefused("redis://h/a: wrong password; check user and password")
    return log


def test_a_refusal_before_the_first_model_ends_the_process(refusing):
    server = SimpleNamespace(should_exit=False)
    follower = Follower(lambda: refusing)
    with pytest.raises(LogRefused, match="wrong password"), process._following(follower, server):
        until = time.monotonic() + 30
        while not server.should_exit and time.monotonic() < until:
            time.sleep(0.001)
    assert server.should_exit


def test_a_refusal_later_leaves_the_model_in_service(refusing):
    follower = Follower(lambda: refusing)
    follower.model = object()
    assert follower.step() == 0 and "wrong password" in follower.problem
    refusing.away = None
    assert follower.step() == 0 and follower.waiting_for


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    files = folder / "cert.pem", folder / "key.pem"
    command = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=test"
    words = [
        *command.split(),
        "-addext",
        "subjectAltName=IP:127.0.0.1",
    ]
    output = ["-out", files[0], "-keyout", files[1]]
    subprocess.run(["openssl", *words, *output], check=True, capture_output=True)
    return files


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is missing")
def test_it_speaks_https_and_nothing_else(made, certificate, rows):
    cert, key = certificate
    options = ("--tls-cert", cert, "--tls-key", key, "--log-format", "json")
    with ServerProcess(made.log.name, *options, trusted=cert) as running:
        running.wait_for(lambda: running.get("/ready"))
        assert running.url.startswith("https://")
        assert running.predict(rows[:3])[0] == 200
        assert b"200" not in running.raw(b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n")[0]
        assert all(json.loads(line)["level"] for line in running.lines)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is missing")
def test_a_wrong_certificate_is_one_line(made, certificate, capsys, tmp_path):
    cert, key = map(str, certificate)
    locked = str(tmp_path / "locked.pem")
    command = ["openssl", "ec", "-in", key, "-out", locked, "-aes128", "-passout", "pass:x"]
    subprocess.run(command, check=True, capture_output=True)
    for given, words in [
        (("--tls-cert", cert), "belong together"),
        (("--tls-cert", "none.pem", "--tls-key", key), "none.pem: no such file"),
        (("--tls-cert", key, "--tls-key", cert), "not a certificate and its key"),
        (("--tls-cert", cert, "--tls-key", locked), "without a password"),
    ]:
        assert main(["online", "serve", "--from", str(made.log.name), *given]) == 2
        told = capsys.readouterr().err
        assert words in told and told.count("\n") == 1
