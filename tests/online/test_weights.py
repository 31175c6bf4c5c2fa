"""Weights of events in the metrics of a stream and of a replay."""

import csv
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score

from cowclip_merlin import metrics
from cowclip_merlin.cli import main
from cowclip_merlin.online.replaying import replay_results
from cowclip_merlin.online.replaying.predictions import PredictionFiles
from cowclip_merlin.online.training.recent_scores import RecentScores


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
