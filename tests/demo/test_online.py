"""The demo, with the real producer and joiner, and a trainer and servers without a model."""

import io
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from cowclip_merlin.demo import online, pipeline
from cowclip_merlin.demo.online import BEST, FROZEN, ONLINE, Demo, Scores, Watch, kill_cost
from cowclip_merlin.demo.pipeline import DemoSettings, Logs
from cowclip_merlin.demo.processes import Processes
from cowclip_merlin.demo.report import StatusBlock, table_text, take_stock
from cowclip_merlin.errors import InputError
from cowclip_merlin.online import FileLog, load_features

FAKES = Path(__file__).with_name("fake_parts.py")
SECONDS = 6.0


@pytest.fixture
def fakes(monkeypatch):
    """Starts fakes instead of trainer and servers; remembers all processes."""
    started, start_cowclip = [], Processes.start_cowclip

    def start(self, name, *words, may_finish=False):
        if words[1] in ("train", "serve"):
            given = dict(zip(words[2::2], words[3::2]))
            logs = (given.get("--from"), given.get("--to"))
            if words[1] == "serve":
                logs = (str(Path(given["--from"]).with_name("examples")), given["--from"])
            last = given.get("--port") or given["--out"]
            process = self.start(name, [sys.executable, str(FAKES), words[1], *logs, last])
        else:
            process = start_cowclip(self, name, *words, may_finish=may_finish)
        started.append(process)
        return process

    monkeypatch.setattr(Processes, "start_cowclip", start)
    monkeypatch.setattr(online, "_QUIET", 0.5)
    monkeypatch.setattr(online, "_LOOK_EVERY", 0.1)
    return started


def ended(process):
    try:
        os.kill(process._popen.pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.system
def test_the_demo(fakes, tmp_path):
    out = io.StringIO()
    demo = DemoSettings(rate=500, window=1, delay=0.1)
    object.__setattr__(demo, "minutes", SECONDS / 60)  # shorter than anybody may ask for
    result = Demo(demo, tmp_path, StatusBlock(out)).run()
    assert len(fakes) == 6 and all(map(ended, fakes))
    assert "kill -9 of the trainer" in out.getvalue()
    accounts = result["accounts"]
    assert accounts["impressions"] == 3000 and accounts["lost"] == 0 < accounts["due"]
    assert accounts["trained"] == accounts["examples"]
    assert result["kill"]["without_syncs"] > 0 and result["kill"]["retrained"] >= 0
    assert result["models"][-1]["event_age"] == 0.5
    assert result["requests"] == {"p50": 1.0, "p99": 2.0, "unanswered": 0}
    assert result["auc"]["impressions"] > 100 and result["auc"]["whole"]["best"] > 0.6
    assert result["models"][-1]["rows"] == accounts["trained"] // 10
    relayed = FileLog(tmp_path / "messages/frozen")
    assert 0 < relayed.end()[0] < FileLog(tmp_path / "messages/syncs").end()[0]
    assert result["memory"].keys() == {each.name for each in fakes}
    assert json.loads((tmp_path / "demo.json").read_text())["kill"] == result["kill"]
    assert (tmp_path / "demo.svg").exists() and "event to served" in table_text(result)


@pytest.mark.system
def test_a_part_that_fails_ends_the_demo(fakes, tmp_path, monkeypatch):
    monkeypatch.setattr(
        pipeline.Pipeline, "start_producer", lambda self: self.trainer._popen.kill()
    )
    with pytest.raises(InputError, match="trainer ended with code -9"):
        Demo(DemoSettings(minutes=1), tmp_path, StatusBlock(io.StringIO())).run()
    assert len(fakes) == 5 and all(map(ended, fakes))


FEATURES = (
    "label: click\ntime: time\nkey: request\ncategorical: [user, item]\ncontinuous: [price]\n"
)


@pytest.fixture
def features(tmp_path):
    path = tmp_path / "features.yaml"
    path.write_text(FEATURES)
    return path


def test_auc_equals_that_of_scikit_learn(monkeypatch):
    random, rows, scores = np.random.default_rng(1), [], Scores()
    for i in range(60):
        monkeypatch.setattr(online.time, "time", lambda i=i: 100 + i)
        keys, values = [f"{i}-{j}" for j in range(30)], {}
        for name in (ONLINE, FROZEN, BEST):
            values[name] = random.random(30).tolist()
        labels = random.random(30) < values[BEST]
        scores.clicked |= {key for key, label in zip(keys, labels) if label}
        scores.add(keys, values)
        rows += [(100 + i, *x) for x in zip(labels, *values.values())]
    rows = np.array([row for row in rows if 110 <= row[0] < 120])
    found = scores.auc(110, 120)
    assert scores.count(110, 120) == 10 * 30
    for column, name in enumerate((ONLINE, FROZEN, BEST), start=2):
        assert found[name] == pytest.approx(roc_auc_score(rows[:, 1], rows[:, column]))


def test_auc_without_clicks_is_none():
    scores = Scores()
    assert set(scores.auc(0, 1).values()) == {None}
    scores.add(list(range(40)), dict.fromkeys((ONLINE, FROZEN, BEST), [0.5] * 40))
    assert set(scores.auc(0, 1e12).values()) == {None} and scores.count(0, 1e12) == 40


def shown(first, n):
    rows = (
        {"request": i, "time": 5, "user": i, "item": "a", "price": None, online.PROBABILITY: 0.25}
        for i in range(first, first + n)
    )
    return [json.dumps(row).encode() for row in rows]


@pytest.fixture
def watch(tmp_path, features, monkeypatch):
    """A watch of logs, and the servers that it asks: each answers with the user and its port."""
    names = ("impressions", "actions", "examples", "syncs")
    logs = [FileLog(tmp_path / name) for name in names]
    asked = []

    def ask(port, path, body):
        asked.append((port, body["events"]))
        return None if port < 0 else {"predictions": [x["user"] + port for x in body["events"]]}

    monkeypatch.setattr(online, "ask", ask)
    monkeypatch.setattr(online, "_SCORED", 100)
    settings = DemoSettings(rate=600)  # one impression in three is scored
    addresses = Logs(*(str(tmp_path / name) for name in names))
    return Watch(settings, addresses, features, str(tmp_path / "frozen")), logs, asked


def test_scores(watch):
    watch, (impressions, actions, *_), asked = watch
    impressions.append(shown(0, 10))  # before it begins
    watch.begin({ONLINE: [100, 200], FROZEN: [300]})
    impressions.append(shown(10, 7))
    actions.append([b'{"request": 13, "time": 6}'])
    watch._score()
    impressions.append(shown(17, 1))
    watch._score()
    watch._score()
    watch.read_clicks()
    found = watch._scores
    assert found._keys == [10, 13, 16, 17] and found.clicked == {13}
    assert found._scores == {
        BEST: [0.25] * 4, ONLINE: [210, 213, 216, 117], FROZEN: [310, 313, 316, 317],
    }  # fmt: skip
    assert asked[0][1][0] == {"user": 10, "item": "a", "price": None}
    watch.begin({ONLINE: [1], FROZEN: [-1]})  # a server that does not answer
    impressions.append(shown(18, 8))
    watch._score()
    assert len(found._keys) == 4 and watch._unanswered == 1


def test_a_frozen_server_gets_no_more_syncs(watch, tmp_path):
    watch, (*_, syncs), _ = watch
    watch.begin({})
    syncs.append([b"1", b"2"])
    watch.relay()
    watch.freeze()
    syncs.append([b"3"])
    watch.relay()
    frozen = FileLog(tmp_path / "frozen")
    assert [x.value for x in frozen.read(frozen.start(), 9)] == [b"1", b"2"]


def model(generation, synced, trained, lag=0):
    return {"generation": generation, "synced": synced, "trained": trained, "trainer_lag": lag}


def test_the_cost_of_a_kill():
    models = [model(1, 10, 3000), model(1, 20, 5000), model(2, 31, 5000, 4000)]
    models.append(model(2, 33, 9000, 100))
    known = {"start": 5, "killed": 22, "snapshot": 4000, "rate": 1000}
    assert kill_cost(models, **known) == {
        "killed_after": 17, "without_syncs": 11, "caught_up_after": 11,
        "retrained": 1000,  # trained 5,000, and the snapshot has 4,000
    }  # fmt: skip
    assert kill_cost(models[:3], **known)["caught_up_after"] is None
    assert kill_cost(models[:2], **known) is None and kill_cost(models[2:], **known) is None


@pytest.mark.parametrize("lost", [[], [3], [0, 11]])
def test_accounts(features, tmp_path, lost):
    logs = [FileLog(tmp_path / name) for name in ("imp", "act", "ex")]
    shown = [{"request": i, "time": 100 + i} for i in range(20)]
    joined = [x | {"click": 0} for x in shown[:15] if x["request"] not in lost]
    joined += [shown[4] | {"click": 1, "cowclip_late": 1}, shown[2] | {"click": 1}]
    for log, rows in zip(logs, ([*shown, shown[0]], [{"request": 2, "time": 104}], joined)):
        log.append([json.dumps(row).encode() for row in rows])
    accounts = take_stock(load_features(features), *logs, window=5)
    assert (accounts.impressions, accounts.clicks) == (20, 1)
    assert accounts.due == 14  # the times 100 to 113 are over at 119 - 5
    assert accounts.lost == len(lost)
    assert accounts.examples == len(joined) and accounts.repeated == 1
    read = take_stock(load_features(features), *logs, window=5, read=len(joined) - 1)
    assert read.repeated == 0 and read.examples == len(joined)


def test_accounts_of_empty_logs(features, tmp_path):
    logs = [FileLog(tmp_path / name) for name in ("imp", "act", "ex")]
    accounts = take_stock(load_features(features), *logs, window=5)
    assert set(vars(accounts).values()) == {0}
