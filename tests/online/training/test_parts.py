"""Repeats, the journal of steps, messages ahead of the clock, recent scores, lines of status."""

import json
import logging
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score
from streams import FEATURES, LABELS, event, log_of, next_batch, stream_trainer

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.definitions import CollisionLine
from cowclip_merlin.experiments.on_logs.collisions import run_collisions
from cowclip_merlin.metrics import roc_auc
from cowclip_merlin.online import FileLog, ReplaySettings, replay_log
from cowclip_merlin.online.joining.loop import join_logs
from cowclip_merlin.online.logs.damaged_messages import DamagedMessages
from cowclip_merlin.online.producing.producer import Producer, ProduceSettings
from cowclip_merlin.online.service import Service
from cowclip_merlin.online.training import recent_scores
from cowclip_merlin.online.training.recent_scores import LabelStretch, RecentScores, TargetScores
from cowclip_merlin.online.training.repeats import RepeatFilter
from cowclip_merlin.online.training.status_report import COLUMNS, StatusReport
from cowclip_merlin.online.training.steps import EventReader, Step, StepJournal
from cowclip_merlin.online.training.trainer import OnlineTrainer
from cowclip_merlin.targets import Target, targets_of


@settings(max_examples=60)
@given(st.lists(st.lists(st.integers(-3, 12), max_size=9), max_size=9))
def test_a_key_is_new_once(parts):
    filter_, known = RepeatFilter(10_000, most_keys=100), set()
    for now, part in enumerate(parts):
        wanted = []
        for key in part:
            wanted.append(key not in known)
            known.add(key)
        keys = np.array(part, np.int64)
        assert filter_.new(keys, np.full(len(keys), now)).tolist() == wanted
        restored = RepeatFilter(10_000, most_keys=100)
        restored.restore(filter_.state())
        filter_ = restored
    assert len(filter_) == len(known)
    assert filter_.dropped == sum(map(len, parts)) - len(known)


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30)), max_size=30),
    st.lists(st.integers(1, 6), min_size=1),
)
def test_a_repeat_depends_on_times_only(events, cuts):
    """Not on how many events come at once."""
    wanted, seen, newest = [], {}, 0
    for key, at in events:
        newest = max(newest, at)
        at = max(at, newest - 10)
        wanted.append(at - seen.get(key, -100) >= 10)
        seen[key] = max(at, seen.get(key, -100))
    filter_, found, first = RepeatFilter(10, most_keys=100), [], 0
    while first < len(events):
        part = events[first : first + cuts[first % len(cuts)]]
        keys, times = (np.array(x, np.int64) for x in zip(*part))
        found += filter_.new(keys, times).tolist()
        first += len(part)
    assert found == wanted


def test_the_oldest_keys_are_forgotten_when_there_are_too_many():
    filter_ = RepeatFilter(1000, most_keys=50)
    for first in range(0, 500, 10):
        keys = np.arange(first, first + 10)
        assert filter_.new(keys, np.full(10, first)).all()
    assert len(filter_) <= 50 and not filter_.new(np.array([499]), np.array([500]))[0]


def test_a_window_that_the_keys_do_not_fill_is_said_with_numbers():
    said = []
    filter_ = RepeatFilter(500, most_keys=1000, warn=said.append)
    for now in range(1000, 1200):  # 10 keys a second
        assert filter_.new(np.arange(10 * now, 10 * now + 10), np.full(10, now)).all()
        assert (filter_.reach < 500) == (now >= 1100) == bool(said)
    assert 80 <= filter_.reach <= 100
    old, young = 10 * (1199 - filter_.reach) - 30, 10 * (1199 - filter_.reach) + 20
    assert filter_.new(np.array([old, young]), np.full(2, 1199)).tolist() == [True, False]
    (line,) = said
    assert line.startswith("the 1,000 known keys reach back ")
    assert "of the 500 s of --repeats-window" in line and "or --repeats-keys 5" in line
    with pytest.raises(InputError, match="knows 1,000 keys, but `repeats_keys` is 999; use at "):
        RepeatFilter(500, most_keys=999).restore(filter_.state())


def test_a_batch_may_have_more_keys_than_are_known():
    filter_ = RepeatFilter(10, most_keys=4)
    keys = np.array([1, 2, 1, 3, 4, 5, 6, 7, 8, 9, 9])
    assert filter_.new(keys, np.zeros(11, int)).tolist() == [True, True, False, *[True] * 7, False]


def test_the_journal_has_the_steps_after_a_snapshot(tmp_path):
    journal = StepJournal(tmp_path / "steps")
    one, two, three = Step((32,), 1, 7), Step((288, 200, 88), 8, 9), Step((293, 205, 88), 1, 9)
    assert journal.after(0) == []
    journal.begin(0, keep=[0])
    journal.note(one)
    journal.note(two)
    journal.begin(288, keep=[0, 288])
    journal.note(three)
    assert journal.after(0) == [one, two, three]
    assert journal.after(288) == [three]
    journal.begin(293, keep=[288, 293])
    assert journal.after(0) == [three]  # the snapshot 0 is gone


def test_the_journal_leaves_out_a_line_that_is_not_finished(tmp_path):
    journal, one, two = StepJournal(tmp_path), Step((32, 0, 5), 1, 7), Step((64, 0, 9), 1, 8)
    (tmp_path / "0.jsonl").write_text(one.line() + two.line()[:-1])
    assert journal.after(0) == [one]
    journal.begin(0, keep=[0])
    journal.note(two)
    assert journal.after(0) == [one, two]
    journal.forget()
    assert journal.after(0) == []


def test_auc_is_computed_again_when_one_event_of_a_hundred_is_new():
    recent = RecentScores(events=1000)
    recent.add(np.array([0, 1], np.int8), np.array([0.1, 0.9], np.float32))
    assert recent.auc() == 1.0
    for i in range(10):
        assert recent.auc() == 1.0
        recent.add(np.array([i % 2], np.int8), np.array([0.9 - 0.8 * (i % 2)], np.float32))
    assert recent.auc() == pytest.approx(roc_auc(recent._labels[:12], recent._scores[:12]))
    assert recent.auc() < 0.5


def test_new_damaged_messages_are_warned_of_once(tmp_path, caplog):
    service = Service(logging.getLogger("report"), "waits")
    report = StatusReport(tmp_path / "metrics.csv", service, TargetScores([Target("click")], 100))
    values = dict.fromkeys(COLUMNS, 0)
    for damaged, warned in ((0, 0), (2, 1), (2, 1), (3, 2)):
        report.write(values | {"damaged": damaged}, reason=f"reason {damaged}")
        found = [each.message for each in caplog.records if each.levelname == "WARNING"]
        assert len(found) == warned
    assert found == [
        "2 damaged messages; the newest: reason 2",
        "3 damaged messages; the newest: reason 3",
    ]
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 5


def test_scores_worse_than_a_constant_are_warned_of_once(tmp_path, caplog):
    scores = TargetScores([Target("click")], 100)
    service = Service(logging.getLogger("report"), "waits")
    report = StatusReport(tmp_path / "metrics.csv", service, scores)
    labels = np.arange(100) % 10 == 0
    for share, score, warned in ((0.5, 0.9, 0), (1, 0.9, 1), (1, 0.9, 1), (1, 0.0, 1), (1, 0.5, 2)):
        part = labels[: int(share * 100)]
        scores.add(part.astype(int), np.where(part, 0.5, score or 0.05))
        report.write(dict.fromkeys(COLUMNS, 0), reason="")
        assert len([x for x in caplog.records if x.levelname == "WARNING"]) == warned
    assert "worse than always answering the click rate: normalized entropy" in caplog.text


def test_scores_that_come_during_the_computation_of_an_auc_change_nothing(monkeypatch):
    draw = np.random.default_rng(5)
    labels, scores = draw.integers(0, 2, 50), draw.random(50, np.float32)
    recent = RecentScores(events=50)
    recent.add(labels, scores)

    def interrupted(function):
        def compute(kept, kept_scores, **weights):
            recent.add(1 - labels, scores[::-1])
            return function(kept, kept_scores, **weights)

        return compute

    wanted = recent_scores.roc_auc(labels, scores), recent_scores.log_loss(labels, scores)
    monkeypatch.setattr(recent_scores, "roc_auc", interrupted(recent_scores.roc_auc))
    monkeypatch.setattr(recent_scores, "log_loss", interrupted(recent_scores.log_loss))
    assert recent.auc() == pytest.approx(wanted[0])
    recent.add(labels, scores)
    assert recent.log_loss() == pytest.approx(wanted[1])


def test_a_stretch_of_one_label_is_said_once_and_not_when_clicks_are_rare():
    said = []
    stretch, draw = LabelStretch(said.append), np.random.default_rng(1)
    for _ in range(2000):
        stretch.add(draw.random(256) < 0.002)  # six of ten batches have no click
    assert not said
    for labels in (np.zeros(50_000), np.zeros(9), np.ones(40), np.ones(9), [0, 1], np.ones(40)):
        stretch.add(np.asarray(labels))
    assert [line.split(",")[0] for line in said] == [
        "the newest 50",
        "the newest 40 events all have label 1",
        "the newest 40 events all have label 1",
    ]


def test_all_clicks_before_all_negatives_is_said(tmp_path, settings_of, caplog):
    rows = [event(i, click=int(i < 150)) for i in range(300)]
    log = log_of(tmp_path / "events", [json.dumps(row).encode() for row in rows])
    stream_trainer(tmp_path / "run", settings_of(batch_size=50), log).run()
    assert "50 events all have label 1" in caplog.text
    assert caplog.text.count("all have label") == 2


def test_a_stream_with_a_wrong_clock_takes_no_memory(tmp_path):
    later = int(time.time()) + 2 * 86400
    ahead = json.dumps(event(0, time=later)).encode()
    log = log_of(tmp_path / "log", [ahead] * 3000 + [b"no event"] + [ahead] * 1000)
    damaged = DamagedMessages(None)
    reader = EventReader(log, FEATURES, log.start(), damaged=damaged)
    while not reader.at_end():
        assert next_batch(reader, 8, wait=0) is None
        assert not reader._parts
    assert damaged.count == 4001 and reader.position == log.end()


ANY_LABEL = st.sampled_from([0.0, 1.0, None])
SCORES = st.integers(1, 99).map(lambda x: x / 100)


def close(found, wanted):
    return found is None if wanted is None else found == pytest.approx(wanted, rel=1e-5, abs=1e-6)


@given(
    st.lists(
        st.tuples(ANY_LABEL, SCORES, st.none() | st.integers(-9, 9), st.integers(-9, 9)),
        max_size=40,
    ),
    st.booleans(),
)
def test_recent_scores_of_each_target(rows, weighted):
    scores = TargetScores(targets_of(["click", "sec"], ["sec"]), events=10)
    weights = np.arange(len(rows)) % 3 if weighted else np.ones(len(rows))
    for part in (slice(i, i + 7) for i in range(0, len(rows), 7)):
        columns = [np.array([row[k] for row in rows[part]], np.float32) for k in range(4)]
        given = (np.stack(columns[0::2], 1), np.stack(columns[1::2], 1))
        scores.add(*given, weights[part].astype(np.float32) if weighted else None)

    def newest(label):
        found = [(r[label], r[label + 1], w) for r, w in zip(rows, weights) if r[label] is not None]
        return np.array([each for each in found[-10:] if each[2]], np.float64).reshape(-1, 3).T

    found = scores.metrics()
    assert list(found) == ["click_auc", "click_log_loss", "sec_rmse"] == list(scores.columns)
    labels, given, weight = newest(0)
    both = len({*labels}) == 2
    auc = roc_auc_score(labels, given, sample_weight=weight) if both else None
    loss = log_loss(labels, given, sample_weight=weight, labels=[0, 1]) if len(labels) else None
    assert close(found["click_auc"], auc) and close(found["click_log_loss"], loss)
    labels, given, weight = newest(2)
    rmse = np.sqrt(np.average((labels - given) ** 2, weights=weight)) if len(labels) else None
    assert close(found["sec_rmse"], rmse)


TWO = replace(LABELS, more_labels=("buy",), regression=())


@pytest.mark.parametrize("features", [LABELS, TWO])
def test_what_takes_one_label_refuses_several(features, tmp_path, settings_of):
    pair = {"impressions": FileLog(tmp_path / "i"), "actions": FileLog(tmp_path / "a")}
    replay = ReplaySettings(batch_days=0, sync=("1h",))
    calls = {
        "a log of clicks": lambda: Producer(features, ProduceSettings(), **pair),
        "cowclip online join": lambda: join_logs(
            "I", "A", to="E", features=features, state=tmp_path / "s", settings=None
        ),
        "a replay": lambda: replay_log(
            ["log.csv"], features, settings_of(), replay, out=tmp_path / "r"
        ),
        "this experiment": lambda: next(
            run_collisions(None, features, settings_of(), CollisionLine(label="", load=0))
        ),
    }
    for what, call in calls.items():
        with pytest.raises(InputError) as error:
            call()
        assert str(error.value).startswith(f"{what} takes one label of 0 and 1, but the data has")
        assert "\n" not in str(error.value)
    assert {path.name for path in tmp_path.iterdir()} <= {"i", "a"}


@pytest.mark.parametrize(
    ("labels", "how", "reason"),
    [
        (("buy", "sec"), "esmm", "esmm needs two labels of 0 and 1, such as click and purchase"),
        ((), "mmoe", "mmoe has no effect with one label"),
    ],
)
def test_settings_that_do_not_fit_the_labels(settings_of, labels, how, reason):
    features = replace(LABELS, more_labels=labels, regression=labels[1:])
    with pytest.raises(InputError, match=reason):
        OnlineTrainer(settings_of(multi_task=how), features)
