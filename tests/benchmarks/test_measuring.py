"""What watches a running stream: probes, and the syncs of a log."""

import json
import sys
import threading
import time
from pathlib import Path

import pytest

from cowclip_merlin.online import FileLog, load_features
from cowclip_merlin.online.sync.sync_message import GENERATION, SNAPSHOT, SYNCED, SyncMessage

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import watching
from watching import STAGES, Answer, NoAnswer, Prober, SyncWatch

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
    wait_for(lambda: all(each.calls > 1 for each in prober._clients))
    # Sync 3 is sent after the join, but the answer below is of sync 7 or of the one before it.
    syncs.append([synced(3, 1), synced(7, 2)])
    wait_for(lambda: prober._watch.position == syncs.end())
    assert not prober.latencies
    FakeClient.known.set()
    wait_for(lambda: prober.latencies)
    latency = prober.latencies[0]
    stages = [getattr(latency, stage) for stage in STAGES]
    assert sum(stages) == pytest.approx(latency.total, abs=1e-6) and min(stages) >= 0
    assert prober.given_up == 0


def test_the_watch(tmp_path):
    syncs = FileLog(tmp_path / "syncs")
    begin = SyncMessage(kind=GENERATION, generation=1, seq=0, info={"run": "r", "snapshot": 5})
    syncs.append([begin.encode(), synced(1, 10)])
    watch = SyncWatch(syncs)
    watch.step()
    again = SyncMessage(kind=SNAPSHOT, generation=1, seq=2, info={"run": "r", "snapshot": 10})
    syncs.append([again.encode(), synced(3, 20)])
    watch.step()
    seen = [(each.seq, each.position[0], each.trained) for each in watch.syncs]
    assert seen == [(1, 10, 10), (3, 20, 20)]
    assert watch.position == syncs.end()
    assert watch.first_from((1, 2), sent=0).seq == 3
    assert watch.first_from((1, 0), sent=watch.syncs[1].sent).seq == 3
    assert watch.first_from((1, 4), sent=0) is watch.first_from((2, 0), sent=0) is None
    with_events = [watch.first_with(n) for n in (1, 10, 11, 21)]
    assert [each and each.seq for each in with_events] == [1, 1, 3, None]
