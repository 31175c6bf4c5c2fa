import json

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from cowclip_merlin.demo.measuring import scoring
from cowclip_merlin.demo.measuring.scoring import (
    BEST,
    FROZEN,
    ONLINE,
    Scored,
    Scorer,
    auc_over_time,
)
from cowclip_merlin.demo.measuring.server_client import Answer, NoAnswer
from cowclip_merlin.online.logs.file_log import FileLog


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


class FakeClient:
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
    monkeypatch.setattr(scoring, "ServerClient", FakeClient)
    monkeypatch.setattr(FakeClient, "asked", [])
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
    assert FakeClient.asked[0][1][0] == {"user": 10, "item": "a", "price": None}


def test_impressions_of_requests_without_an_answer_are_left_out(features, logs, monkeypatch):
    monkeypatch.setattr(scoring, "ServerClient", FakeClient)
    monkeypatch.setattr(FakeClient, "asked", [])
    scorer = Scorer(features, *logs, {ONLINE: [1], FROZEN: [-1]}, probability="p")
    logs[0].append(shown(0, 8))
    scorer.step()
    assert scorer.scored == [] and scorer.unanswered == 1
