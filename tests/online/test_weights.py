"""Weights of events: how they are read, trained and counted in metrics."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score

from cowclip_merlin import compat, metrics
from cowclip_merlin.batch import Ids
from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.event_log import EventLog
from cowclip_merlin.online.events.events import Events
from cowclip_merlin.online.events.features import CategoricalColumn, LogFeatures
from cowclip_merlin.online.events.messages import encode_messages
from cowclip_merlin.online.events.raw_events import RawLog
from cowclip_merlin.online.joining.examples import ExampleWriter
from cowclip_merlin.online.logs.open_log import open_log
from cowclip_merlin.online.producing.messages import EventMessages
from cowclip_merlin.online.replaying import replay_results
from cowclip_merlin.online.replaying.predictions import PredictionFiles
from cowclip_merlin.online.run_config import load_online_config, online_config, refuse_difference
from cowclip_merlin.online.training.recent_scores import RecentScores
from cowclip_merlin.online.training.trainer import OnlineTrainer
from cowclip_merlin.system.files import write_json

FEATURES = LogFeatures(
    label="click",
    time="time",
    key="request",
    weight="w",
    categorical=(CategoricalColumn(name="item"),),
)
GOOD = [1, 0, 2.5, "0.5", 1e-3, " 3 "]
BAD = [-1, None, float("nan"), float("inf"), "x", "", True, 1e300, [1]]


def message(weight, **more):
    row = {"click": 1, "time": 1000, "request": "r", "item": "a", "w": weight}
    return json.dumps(row | more).encode()


def test_weights_of_messages_are_checked():
    events, damage = encode_messages([message(w) for w in [*GOOD, *BAD]], FEATURES)
    assert sorted(damage.reasons) == list(range(len(GOOD), len(GOOD) + len(BAD)))
    assert events.weights.dtype == np.float32
    np.testing.assert_allclose(events.weights[: len(GOOD)], [1, 0, 2.5, 0.5, 1e-3, 3])
    assert damage.reasons[len(GOOD)] == "w is '-1', no weight; give a finite number of 0 or more"
    missing = {name: x for name, x in json.loads(message(1)).items() if name != "w"}
    _, damage = encode_messages([json.dumps(missing).encode()], FEATURES)
    assert "no 'w'" in damage.reasons[0]


def test_a_file_gives_the_weights_of_its_messages(tmp_path):
    rows = [{"click": i % 2, "time": 1000 + i, "request": f"r{i}", "item": i} for i in range(6)]
    weights = [1, 0, "", -2, 0.25, 3]
    frame = pd.DataFrame([row | {"w": w} for row, w in zip(rows, weights)])
    frame.to_csv(tmp_path / "log.csv", index=False)
    file, bad = tmp_path / "log.csv", tmp_path / "bad"
    log = EventLog([file], FEATURES, max_bad_fraction=1, quarantine=bad)
    (events,) = log
    assert events.weights.tolist() == [1, 0, 0.25, 3] and log.damaged.count == 2
    assert "w is '-2', no weight" in bad.read_text(encoding="utf-8")
    (raw,) = RawLog([tmp_path / "log.csv"], FEATURES)
    produced, damage = encode_messages(EventMessages(FEATURES).examples(raw, raw.times), FEATURES)
    assert sorted(damage.reasons) == [2, 3]
    np.testing.assert_array_equal(produced.filter(damage.good(6)).weights, events.weights)
    impressions = EventMessages(FEATURES).impressions(raw, raw.times)
    joined = [ExampleWriter("click", 0.5).write(impressions[i], 0) for i in (0, 4)]
    found, damage = encode_messages(joined, FEATURES)
    assert not damage.reasons and found.weights.tolist() == [1, 0.25]
    np.testing.assert_allclose(np.exp(found.offsets), 0.5, rtol=1e-6)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("weight: item", "also weight|also categorical|one role"),
        ("weight: [w]", "weight is"),
        ("weight: cowclip_late", "cowclip online join adds"),
    ],
)
def test_other_weights_in_a_features_file_are_refused(features_file, line, why):
    text = f"label: click\ntime: time\n{line}\ncategorical: [item]\n"
    with pytest.raises(InputError, match=why):
        features_file(text)


def test_a_features_file_names_the_weight(features_file, settings_of, tmp_path):
    text = "label: click\ntime: time\nweight: w\ncategorical: [item]\n"
    features = features_file(text)
    assert features.weight == "w" and "w" in features.names and "w" not in features.inputs
    plain = features_file(text.replace("weight: w\n", ""))
    for each in (plain, features):
        write_json(tmp_path / "config.json", online_config(settings_of(), each))
        assert load_online_config(tmp_path)[1] == each
    config = online_config(settings_of(), plain)
    assert "weight" not in config["features"]  # as before there were weights
    with pytest.raises(InputError, match="another weight"):
        refuse_difference(tmp_path, config, online_config(settings_of(), features))


def events_of(items, labels, weights, offsets=None):
    n = len(items)
    return Events(
        ids=Ids(np.asarray(items, np.int64)[:, None]),
        numbers=np.zeros((n, 0), np.float32),
        labels=np.asarray(labels, np.int8),
        times=np.zeros(n, np.int64),
        keys=np.arange(n),
        weights=np.asarray(weights, np.float32),
        offsets=None if offsets is None else np.asarray(offsets, np.float32),
    )


@pytest.mark.parametrize("offsets", [None, [0.0, -2.3, -0.7, -2.3, 0.0, -4.0]])
def test_loss_and_gradient_equal_a_slow_reference(settings_of, monkeypatch, offsets):
    from cowclip_merlin.optimizer.cowclip import CowClip

    tf, kept = compat.tensorflow(), {}
    trainer = OnlineTrainer(settings_of(overrides={"init_std": 1.0}), FEATURES)
    bias = trainer.model.blocks[0].logit.bias
    kept[bias.name] = tf.Variable(tf.zeros_like(bias))

    def apply_gradients(self, pairs, *args, **more):
        for gradient, variable in pairs:
            if variable.name in kept:
                kept[variable.name].assign(gradient)

    monkeypatch.setattr(CowClip, "apply_gradients", apply_gradients)
    events = events_of([1, 2, 3, 1, 2, 9], [0, 1, 0, 0, 1, 0], [1, 0.5, 0, 3, 2, 7], offsets)
    rows = trainer.table.admit(events.ids, events.times)
    trainer._steps.clear()  # traced before the gradients were kept
    served = trainer.score(rows, events.numbers).astype(np.float64)
    trainer.step(rows, events)
    loss, slope = 0.0, 0.0
    for p, label, offset, weight in zip(
        served, events.labels, offsets or [0.0] * 6, events.weights
    ):
        trained = 1 / (1 + np.exp(offset) * (1 - p) / p)
        loss -= weight * np.log(trained if label else 1 - trained)
        slope += weight * (trained - label)
    expected = [slope / events.weights.sum()]
    np.testing.assert_allclose(kept[bias.name].numpy(), expected, rtol=1e-5)
    np.testing.assert_allclose(trainer._loss_sum.numpy(), loss, rtol=1e-5)


def test_a_batch_of_weight_0_changes_no_weight(settings_of):
    trainer = OnlineTrainer(settings_of(), FEATURES)
    trainer.train(events_of([1, 2, 3], [0, 1, 0], [1, 2, 3]))

    def state():
        rows = trainer.table.lookup(Ids(np.array([[1], [2], [3]])))
        tables = [table.numpy()[rows.values] for table in trainer.tables]
        return [x.copy() for x in (*trainer.dense_weights(), *tables)]

    before = state()
    trainer.train(events_of([1, 2, 3], [1, 0, 1], [0, 0, 0]))
    for a, b in zip(before, state(), strict=True):
        np.testing.assert_array_equal(a, b)
    trainer.train(events_of([1, 2, 3], [1, 0, 1], [0, 0, 1]))
    assert any((a != b).any() for a, b in zip(before, state(), strict=True))


def test_weights_of_1_train_as_no_weights(settings_of):
    items, labels = [1, 2, 3, 1, 2, 9], [0, 1, 0, 0, 1, 0]
    weighted = OnlineTrainer(settings_of(), FEATURES)
    plain = OnlineTrainer(settings_of(), replace(FEATURES, weight=None))
    weighted.train(events_of(items, labels, np.ones(6)))
    plain.train(replace(events_of(items, labels, np.ones(6)), weights=None))
    for left, right in zip(weighted.dense_weights(), plain.dense_weights(), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-6)


@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.floats(0, 1, width=32), st.sampled_from([0, 0.5, 1, 4])),
        max_size=30,
    )
)
def test_recent_scores_are_weighted(rows):
    recent = RecentScores(events=10)
    for first in range(0, len(rows), 4):
        part = list(zip(*rows[first : first + 4]))
        recent.add(*(np.array(x, t) for x, t in zip(part, (np.int8, np.float32, np.float32))))
    last = [row for row in rows[-10:] if row[2]]
    labels, scores, weights = zip(*last) if last else ((), (), ())
    scores = np.array(scores, np.float32)
    assert len(recent) == min(len(rows), 10)
    if len(set(labels)) == 2:
        expected = metrics.roc_auc(labels, scores, sample_weight=weights)
        assert recent.auc() == pytest.approx(expected)
    else:
        assert recent.auc() is None
    if last:
        expected = metrics.log_loss(labels, scores, sample_weight=weights)
        assert recent.log_loss() == pytest.approx(expected)
    else:
        assert recent.log_loss() is None


def test_results_of_a_replay_are_weighted():
    label, score = np.array([0, 1, 1, 0]), np.array([0.2, 0.3, 0.1, 0.9], np.float32)
    time = np.array([10, 20, 3_700, 3_800])
    found = {"label": label, "time": time, "1d": score, "weight": np.array([1, 2, 0, 0])}
    (total,) = replay_results.total_rows(found, ["1d"])
    first, second = replay_results.period_rows(found, ["1d"], "hour")
    expected = metrics.log_loss(label[:2], score[:2], sample_weight=[1, 2])
    assert (total["auc"], total["log_loss"], total["rows"]) == (1.0, expected, 4)
    assert (first["auc"], first["log_loss"], first["rows"]) == (1.0, expected, 2)
    assert (second["auc"], second["log_loss"], second["rows"]) == ("", "", 2)


@pytest.fixture
def log(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng, n = np.random.default_rng(5), 1200
    columns = {"click": rng.integers(0, 2, n), "time": 1_700_000_000 + 120 * np.arange(n)}
    columns |= {"request": [f"r{i}" for i in range(n)], "item": rng.integers(0, 20, n)}
    frame = pd.DataFrame(columns | {"w": rng.integers(0, 5, n) / 2})
    frame.to_csv("log.csv", index=False)
    text = "label: click\ntime: time\nkey: request\ncategorical: [item]\n"
    Path("f.yaml").write_text(text + "weight: w\n", encoding="utf-8")
    Path("plain.yaml").write_text(text, encoding="utf-8")
    return frame


MODEL = ["--model", "deepfm", "--batch-size", "64", "--mlp", "8", "--capacity", "4000"]


@pytest.mark.runs
def test_a_replay_uses_the_weights(log):
    words = ["online", "replay", "log.csv", *MODEL, "--batch-days", "0.5", "--sync", "1h"]
    for name in ("f", "plain"):
        assert main([*words, "--features", f"{name}.yaml", "--out", name]) == 0
    texts = [Path(name, "replay.csv").read_text(encoding="utf-8") for name in ("f", "plain")]
    (row,), (plain,) = (list(csv.DictReader(text.splitlines())) for text in texts)
    found = PredictionFiles(Path("f/predictions"), ["1h"], weighted=True).read()
    np.testing.assert_array_equal(found["weight"], log.w[-len(found["weight"]) :])
    given = {"sample_weight": found["weight"]}
    expected = roc_auc_score(found["label"], found["1h"], **given)
    assert float(row["auc"]) == pytest.approx(expected, abs=1e-12)
    assert float(row["log_loss"]) == pytest.approx(
        log_loss(found["label"], found["1h"].astype(float), **given), rel=1e-6
    )
    assert row["log_loss"] != plain["log_loss"] and row["rows"] == plain["rows"]
    assert not Path("plain/predictions/weight.bin").exists()


@pytest.mark.runs
def test_a_stream_uses_the_weights_and_sets_damaged_ones_aside(log, capsys):
    produce = ["online", "produce", "log.csv", "--features", "f.yaml", "--to", "EVENTS"]
    assert main(produce) == 0
    open_log("EVENTS").append([message(-1, request="x1"), message(float("nan"), request="x2")])
    words = ["online", "train", "--from", "EVENTS", "--features", "f.yaml", "--out", "RUN", *MODEL]
    assert main([*words, "--until-end"]) == 0
    assert "trained 1,200 events" in capsys.readouterr().out
    damaged = Path("RUN/damaged.jsonl").read_text(encoding="utf-8").splitlines()
    assert ["no weight" in line for line in damaged] == [True, True]
