"""What watches a running stream: probes, requests, and threads that repeat a step."""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cowclip_merlin.online import FileLog, load_features
from cowclip_merlin.online.logs.message_log import LogUnavailable
from cowclip_merlin.online.sync.sync_message import GENERATION, SNAPSHOT, SYNCED, SyncMessage
from cowclip_merlin.system.processes import free_ports

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import watching
from watching import STAGES, Answer, NoAnswer, Prober, Repeat, ServerClient, SyncWatch

LONG = 30


def synced(seq, position):
    info = {"trained": position, "position": [position, 0, 0], "time": time.time()}
    return SyncMessage(kind=SYNCED, generation=1, seq=seq, info=info).encode()


@pytest.fixture
def features(tmp_path):
    path = tmp_path / "features.yaml"
    path.write_text(
        "label: click\ntime: time\nkey: request\ncategorical: [user, item]\ncontinuous: [price]\n"
    )
    return load_features(path)


class FakeClient:
    """Knows the ids of the first row when told so."""

    known = threading.Event()

    def __init__(self, port):
        self.port, self.calls = port, 0

    def predict(self, rows):
        self.calls += 1
        if self.calls == 1:
            raise NoAnswer("not yet")
        assert rows[0].keys() == {"user", "item", "price"} and rows[0] != rows[1]
        return Answer([0.2 if self.known.is_set() else 0.1, 0.1], 1, 7)


@pytest.fixture
def pipeline(features, tmp_path, monkeypatch):
    """A prober with its logs, and the watch."""
    monkeypatch.setattr(watching, "ServerClient", FakeClient)
    monkeypatch.setattr(FakeClient, "known", threading.Event())
    logs = [FileLog(tmp_path / name) for name in ("imp", "act", "ex", "syncs")]
    watch = SyncWatch(logs[3])
    prober = Prober(features, *logs[:3], watch, [1, 2], every=0.01)
    watch.start()
    yield prober, watch, *logs
    prober.stop()
    watch.stop()
    assert prober.failure is None and watch.failure is None


def wait_for(condition):
    until = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


def test_a_probe(pipeline):
    prober, _, impressions, actions, examples, syncs = pipeline
    prober.start()
    wait_for(lambda: actions.end()[0] == 1)
    shown, clicked = (
        json.loads(log.read(log.start(), 1)[0].value) for log in (impressions, actions)
    )
    assert shown["request"] == clicked["request"] and shown.keys() > {"user", "item", "price"}
    examples.append([b'{"request": "another"}', json.dumps(shown | {"click": 1}).encode()])
    time.sleep(0.05)  # stages that one can tell apart; nothing depends on its length
    # Sync 3 is sent after the join, but the answer below is of sync 7 or of the one before it.
    syncs.append([synced(3, 1), synced(7, 2)])
    time.sleep(0.05)
    assert not prober.latencies
    FakeClient.known.set()
    wait_for(lambda: prober.latencies)
    latency = prober.latencies[0]
    stages = [getattr(latency, stage) for stage in STAGES]
    assert sum(stages) == pytest.approx(latency.total, abs=1e-6) and min(stages) >= 0
    assert latency.train > 0.02 and latency.apply > 0.02
    assert prober.given_up == 0 and [each.calls > 1 for each in prober._clients] == [True] * 2


def test_a_probe_that_nobody_serves_is_given_up(pipeline, monkeypatch):
    monkeypatch.setattr(watching, "_LONGEST", 0.2)
    prober = pipeline[0]
    prober.start()
    wait_for(lambda: prober.given_up >= 2)
    assert not prober.latencies


def test_probes_have_ids_of_their_own(pipeline):
    prober = pipeline[0]
    rows = [prober._row(i) for i in range(4)]
    assert len({row["user"] for row in rows}) == 4
    assert all(row["price"] is None and row["user"] == row["item"] for row in rows)


def test_the_watch(tmp_path):
    syncs = FileLog(tmp_path / "syncs")
    begin = SyncMessage(kind=GENERATION, generation=1, seq=0, info={"run": "r", "snapshot": 5})
    syncs.append([begin.encode(), synced(1, 10)])
    watch = SyncWatch(syncs)
    watch.step()
    again = SyncMessage(kind=SNAPSHOT, generation=1, seq=2, info={"run": "r", "snapshot": 10})
    syncs.append([again.encode(), synced(3, 20)])
    watch.step()
    assert [(each.seq, each.position[0], each.trained) for each in watch.syncs] == [
        (1, 10, 10),
        (3, 20, 20),
    ]
    assert watch.position == syncs.end()
    assert watch.first_from((1, 2), sent=0).seq == 3
    assert watch.first_from((1, 0), sent=watch.syncs[1].sent).seq == 3
    assert watch.first_from((1, 4), sent=0) is watch.first_from((2, 0), sent=0) is None
    assert [watch.first_with(n) and watch.first_with(n).seq for n in (1, 10, 11, 21)] == [
        1,
        1,
        3,
        None,
    ]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer(200, {"path": self.path})

    def do_POST(self):
        given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not given["events"]:
            self.answer(503, {"detail": "no model yet"})
            return
        model = {"generation": 2, "seq": 5, "trained": 9}
        self.answer(200, {"predictions": [0.5] * len(given["events"]), "model": model})

    def answer(self, code, value):
        data = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def port():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


def test_answers(port):
    client = ServerClient(port)
    assert client.status() == {"path": "/v1/status"}
    answer = client.predict([{"user": 1}, {"user": None}])
    assert (answer.probabilities, answer.generation, answer.seq) == ([0.5, 0.5], 2, 5)
    with pytest.raises(NoAnswer, match=r"503 .*no model yet"):
        client.predict([])
    assert client.predict([{}]).seq == 5  # over the same connection
    client.close()
    client.close()
    assert client.predict([{}]).seq == 5  # over a new one
    client.close()


def test_a_server_that_is_away():
    client = ServerClient(free_ports(1)[0])
    with pytest.raises(NoAnswer, match="ConnectionRefusedError"):
        client.status()


class Steps(Repeat):
    def __init__(self, errors):
        super().__init__("steps", every=0.001)
        self.errors, self.done = list(errors), 0

    def step(self):
        if self.errors:
            raise self.errors.pop(0)
        self.done += 1


def test_a_log_that_does_not_answer_is_asked_again(monkeypatch):
    monkeypatch.setattr(watching, "_RETRY", 0.001)
    steps = Steps([LogUnavailable("away")] * 3)
    steps.start()
    wait_for(lambda: steps.done > 2)
    steps.stop()
    assert steps.unavailable == 3 and steps.failure is None and steps.is_ending
    done = steps.done
    time.sleep(0.01)
    assert steps.done == done


def test_another_error_ends_the_thread_and_is_remembered():
    steps = Steps([ValueError("no number")])
    steps.start()
    wait_for(lambda: steps.failure)
    assert "ValueError: no number" in steps.failure and steps.done == 0
    steps.stop()
