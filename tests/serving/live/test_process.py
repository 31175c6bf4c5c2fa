"""A server as its own process: it follows a log, refuses what is too much, and ends in order."""

import json
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from itertools import chain
from types import SimpleNamespace
from unittest.mock import Mock
from urllib.request import Request, urlopen

import pytest
from http_clients import LIMITS, ask, request, running
from published import follower_of, publish
from server_process import ServerProcess
from sync_logs import ListLog

from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.logs.message_log import LogRefused
from cowclip_merlin.serving.live import process
from cowclip_merlin.serving.live.follower import Follower

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def made(tmp_path_factory, small_settings, features, events):
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


MISSING = """
import sys
from cowclip_merlin.cli import main
for name in ("prometheus_client", "uvicorn", "fastapi"):
    kept = sys.modules.pop(name, None)
    sys.modules[name] = None
    print(main(["online", "serve", "--from", sys.argv[1]]))
    del sys.modules[name]
    sys.modules.update({name: kept} if kept else {})
"""


def test_a_missing_package_is_one_line(tmp_path):
    """Whichever of the packages it is."""
    (tmp_path / "sync").mkdir()
    command = [sys.executable, "-c", MISSING, str(tmp_path / "sync")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["2"] * 3, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 3
    assert all("pip install 'cowclip-merlin[online]'" in line for line in lines)


def test_a_server_from_its_start_to_its_end(tmp_path, small_settings, features, events, rows):
    """Before its trainer, with a token, and until a signal while a request is running."""
    (tmp_path / "sync").mkdir()
    (tmp_path / "token").write_text("s3cret\n")
    token = {"Authorization": "Bearer s3cret"}
    options = ("--token-file", tmp_path / "token", "--log-format", "json")
    with ServerProcess(tmp_path / "sync", *options) as server:
        assert server.predict(rows[:1])[0] == 401 and server.get("/v1/status", ok=()) is None
        status, answer = server.predict(rows[:1], **token)
        assert status == 503 and "no snapshot yet" in answer["error"]
        publish(tmp_path, small_settings, features, events.filter(slice(0, 256)))
        server.wait_for(lambda: server.get("/v1/status", **token)["model"])
        assert server.get("/ready") == {"ready": True}
        assert all(json.loads(line)["level"] for line in server.lines)
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
        server.wait_for(lambda: is_closed(server))
        connection.sendall(body[9:])
        answer = b""
        while part := connection.recv(4096):
            answer += part
    return answer


def is_closed(server):
    """Whether it takes no more connections, as after the signal."""
    with socket.socket() as probe:
        return probe.connect_ex((server.host, server.port)) != 0


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
    words = [*command.split(), "-addext", "subjectAltName=IP:127.0.0.1"]
    output = ["-out", files[0], "-keyout", files[1]]
    subprocess.run(["openssl", *words, *output], check=True, capture_output=True)
    return files


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is missing")
def test_it_speaks_https_and_nothing_else(made, certificate, rows, monkeypatch):
    options = [*zip(("--tls-cert", "--tls-key", "--port"), (*map(str, certificate), "0"))]
    with monkeypatch.context() as patch:
        patch.setattr(process, "_set_up_tensorflow", lambda _: None)
        patch.setattr(process, "http_config", Mock(side_effect=InputError("seen")))
        assert main(["online", "serve", "--from", made.log.name, *chain(*options)]) == 2
        assert process.http_config.call_args.args[2] == certificate
    context = ssl.create_default_context(cafile=certificate[0])
    body, kind = json.dumps({"events": rows[:3]}).encode(), {"Content-Type": "application/json"}
    with running(follower_of(made), LIMITS, certificate) as port:
        url = f"https://127.0.0.1:{port}/v1/predict"
        with urlopen(Request(url, body, kind), context=context, timeout=30) as answer:
            assert len(json.load(answer)["predictions"]) == 3
        assert ask(port, request("/ready")) == (0, b"")


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
