"""What the demo measures: probes, scores, requests, accounts, and threads that repeat a step."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from cowclip_merlin.demo.measuring import probes, scoring, sync_watch
from cowclip_merlin.demo.measuring.failure import kill_cost, take_stock
from cowclip_merlin.demo.measuring.probes import STAGES, Prober
from cowclip_merlin.demo.measuring.scoring import (
    BEST,
    FROZEN,
    ONLINE,
    Scored,
    Scorer,
    auc_over_time,
)
from cowclip_merlin.demo.measuring.server_client import Answer, NoAnswer, ServerClient
from cowclip_merlin.demo.measuring.sync_watch import Repeat, Sync, SyncWatch
from cowclip_merlin.online import FileLog, load_features
from cowclip_merlin.online.logs.message_log import LogUnavailable
from cowclip_merlin.online.sync.sync_message import GENERATION, SNAPSHOT, SYNCED, SyncMessage
from cowclip_merlin.system.processes import free_ports

LONG = 30


def synced(seq, position, **info):
    info = {"trained": position, "position": [position, 0, 0], "time": time.time()} | info
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
    monkeypatch.setattr(probes, "ServerClient", FakeClient)
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
    assert prober.given_up == 0 and prober.unanswered == 2 and prober.requests


def test_a_probe_that_nobody_serves_is_given_up(pipeline, monkeypatch):
    monkeypatch.setattr(probes, "_LONGEST", 0.2)
    prober = pipeline[0]
    prober.start()
    wait_for(lambda: prober.given_up >= 2)
    assert not prober.latencies


def test_probes_have_ids_of_their_own(pipeline):
    prober = pipeline[0]
    rows = [prober._row(i) for i in range(4)]
    assert len({row["user"] for row in rows}) == 4
    assert all(row["price"] is None and row["user"] == row["item"] for row in rows)


def test_the_watch_and_its_copy(tmp_path):
    syncs, copy = FileLog(tmp_path / "syncs"), FileLog(tmp_path / "copy")
    begin = SyncMessage(kind=GENERATION, generation=1, seq=0, info={"run": "r", "snapshot": 5})
    syncs.append([begin.encode(), synced(1, 10, rows=3)])
    watch = SyncWatch(syncs, copy)
    watch.step()
    watch.stop_copy()
    again = SyncMessage(kind=SNAPSHOT, generation=1, seq=2, info={"run": "r", "snapshot": 10})
    syncs.append([again.encode(), synced(3, 20)])
    watch.step()
    assert [(each.seq, each.position[0], each.trained) for each in watch.syncs] == [
        (1, 10, 10),
        (3, 20, 20),
    ]
    assert watch.starts[1][1] == 5 and watch.snapshots == [10]
    assert [x.value for x in copy.read(copy.start(), 9)] == [
        x.value for x in syncs.read(syncs.start(), 2)
    ]
    assert watch.first_from((1, 2), sent=0).seq == 3
    assert watch.first_from((1, 0), sent=watch.syncs[1].sent).seq == 3
    assert watch.first_from((1, 4), sent=0) is watch.first_from((2, 0), sent=0) is None
    assert [watch.first_with(n) and watch.first_with(n).seq for n in (1, 10, 11, 21)] == [
        1,
        1,
        3,
        None,
    ]
    assert isinstance(watch.syncs[0], Sync) and watch.syncs[0].info["rows"] == 3


def test_auc_over_time_equals_that_of_scikit_learn():
    random = np.random.default_rng(1)
    scored, clicked, rows = [], set(), []
    for i in range(60):
        time, keys = 100 + i, [f"{i}-{j}" for j in range(30)]
        scores = {name: random.random(30).tolist() for name in (ONLINE, FROZEN, BEST)}
        labels = random.random(30) < scores[BEST]
        clicked |= {key for key, label in zip(keys, labels) if label}
        scored.append(Scored(time, keys, scores))
        rows += [(time, label, *x) for label, *x in zip(labels, *scores.values())]
    auc = auc_over_time(scored, clicked, start=110, end=150, parts=4)
    assert auc.times == [5, 15, 25, 35] and auc.impressions == 40 * 30
    rows = np.array([row for row in rows if 110 <= row[0] < 150])
    for column, name in enumerate((ONLINE, FROZEN, BEST), start=2):
        assert auc.whole[name] == pytest.approx(roc_auc_score(rows[:, 1], rows[:, column]))
        for part in range(4):
            inside = rows[(rows[:, 0] - 110) // 10 == part]
            wanted = roc_auc_score(inside[:, 1], inside[:, column])
            assert auc.parts[name][part] == pytest.approx(wanted)


def test_auc_without_clicks_is_not_a_number():
    scores = dict.fromkeys((ONLINE, FROZEN, BEST), [0.5] * 40)
    auc = auc_over_time([Scored(1, list(range(40)), scores)], set(), start=0, end=4, parts=2)
    assert np.isnan(auc.whole[ONLINE]) and np.isnan(auc.parts[BEST]).all()
    empty = auc_over_time([], set(), start=0, end=4, parts=2)
    assert empty.impressions == 0 and np.isnan(empty.whole[FROZEN])


class UserClient:
    """Answers with a number for each user; each port has its own."""

    asked = None  # a list that the test sets

    def __init__(self, port):
        self.port = port

    def predict(self, rows):
        if self.port < 0:
            raise NoAnswer("away")
        type(self).asked.append((self.port, rows))
        return Answer([row["user"] + self.port for row in rows], 1, 1)


@pytest.fixture
def logs(tmp_path):
    return FileLog(tmp_path / "imp"), FileLog(tmp_path / "act")


def shown(first, n, **more):
    rows = (
        {"request": i, "time": 5, "user": i, "item": "a", "price": None, "p": 0.25} | more
        for i in range(first, first + n)
    )
    return [json.dumps(row).encode() for row in rows]


def test_scorer(features, logs, monkeypatch):
    monkeypatch.setattr(scoring, "ServerClient", UserClient)
    monkeypatch.setattr(UserClient, "asked", [])
    impressions, actions = logs
    impressions.append(shown(0, 10))  # before the scorer
    ports = {ONLINE: [100, 200], FROZEN: [300]}
    scorer = Scorer(features, impressions, actions, ports, probability="p", one_in=3)
    impressions.append(shown(10, 7))
    actions.append([b'{"request": 13, "time": 6}', b'{"request": "probe", "time": 6}'])
    scorer.step()
    impressions.append(shown(17, 1))
    impressions.append([b'{"request": "probe", "time": 5, "user": 1, "item": "a"}'])
    scorer.step()
    scorer.step()
    assert [each.keys for each in scorer.scored] == [[10, 13, 16], [17]]
    first, second = (each.scores for each in scorer.scored)
    assert first == {BEST: [0.25] * 3, ONLINE: [210, 213, 216], FROZEN: [310, 313, 316]}
    assert second == {BEST: [0.25], ONLINE: [117], FROZEN: [317]}
    assert scorer.clicked == {13, "probe"} and scorer.unanswered == 0
    assert UserClient.asked[0][1][0] == {"user": 10, "item": "a", "price": None}


def test_impressions_of_requests_without_an_answer_are_left_out(features, logs, monkeypatch):
    monkeypatch.setattr(scoring, "ServerClient", UserClient)
    monkeypatch.setattr(UserClient, "asked", [])
    scorer = Scorer(features, *logs, {ONLINE: [1], FROZEN: [-1]}, probability="p")
    logs[0].append(shown(0, 8))
    scorer.step()
    assert scorer.scored == [] and scorer.unanswered == 1


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
    assert client.is_serving(["user"]) and client.status() == {"path": "/v1/status"}
    answer = client.predict([{"user": 1}, {"user": None}])
    assert (answer.probabilities, answer.generation, answer.seq) == ([0.5, 0.5], 2, 5)
    with pytest.raises(NoAnswer, match=r"503 .*no model yet"):
        client.predict([])
    assert client.predict([{}]).seq == 5  # over the same connection
    client.close()
    client.close()
    assert client.is_serving(["user"])
    client.close()


def test_a_server_that_is_away():
    client = ServerClient(free_ports(1)[0])
    assert not client.is_serving([])
    with pytest.raises(NoAnswer, match="ConnectionRefusedError"):
        client.status()


class Syncs:
    def __init__(self, syncs):
        self.syncs, self.starts = syncs, {1: (0.0, 0), 2: (26.0, 4000)}


def sync(generation, seen, trained, lag=0):
    return Sync(generation, 9, seen - 0.1, seen, (trained,), trained, {"lag": lag})


def test_the_cost_of_a_kill():
    syncs = [sync(1, 10, 3000), sync(1, 20, 5000), sync(2, 31, 5000, 4000), sync(2, 33, 9000, 100)]
    cost = kill_cost(Syncs(syncs), start=5, killed=22, rate=1000)
    assert (cost.killed_after, cost.without_syncs, cost.caught_up_after) == (17, 11, 11)
    assert cost.retrained == 1000  # trained 5,000, and the snapshot has 4,000
    assert kill_cost(Syncs(syncs[:3]), start=5, killed=22, rate=1000).caught_up_after is None
    assert kill_cost(Syncs(syncs[:2]), start=5, killed=22, rate=1000) is None
    assert kill_cost(Syncs(syncs[2:]), start=5, killed=22, rate=1000) is None


@pytest.mark.parametrize("lost", [[], [3], [0, 11]])
def test_accounts(features, tmp_path, lost):
    logs = [FileLog(tmp_path / name) for name in ("imp", "act", "ex")]
    shown = [{"request": i, "time": 100 + i} for i in range(20)]
    joined = [x | {"click": 0} for x in shown[:15] if x["request"] not in lost]
    joined.append(shown[2] | {"click": 1})
    for log, rows in zip(logs, ([*shown, shown[0]], [{"request": 2, "time": 104}], joined)):
        log.append([json.dumps(row).encode() for row in rows])
    last = sync(1, 10, len(joined) - 1)._replace(position=(len(joined), 0, 5))
    accounts = take_stock(features, *logs, window=5, last=last)
    assert (accounts.impressions, accounts.clicks) == (20, 1)
    assert accounts.due == 14  # the times 100 to 113 are over at 119 - 5
    assert accounts.lost == len(lost)
    assert accounts.examples == len(joined) == accounts.read and accounts.repeated == 1
    assert accounts.trained == accounts.examples - accounts.repeated


def test_accounts_of_empty_logs(features, tmp_path):
    logs = [FileLog(tmp_path / name) for name in ("imp", "act", "ex")]
    accounts = take_stock(features, *logs, window=5, last=None)
    assert set(vars(accounts).values()) == {0}


class Steps(Repeat):
    def __init__(self, errors):
        super().__init__("steps", every=0.001)
        self.errors, self.done = list(errors), 0

    def step(self):
        if self.errors:
            raise self.errors.pop(0)
        self.done += 1


def test_a_log_that_does_not_answer_is_asked_again(monkeypatch):
    monkeypatch.setattr(sync_watch, "_RETRY", 0.001)
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
