"""The folder of a replay: its scores, also weighted, what it refuses, what a stop leaves there."""

import csv
import json
import os
import re
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from replays import final_state
from sklearn.metrics import log_loss, roc_auc_score

from cowclip_merlin import metrics
from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.online import OnlineSettings, ReplaySettings, replay_log
from cowclip_merlin.online.replaying import replay_results
from cowclip_merlin.online.replaying.replay_results import DAY, PredictionFiles
from cowclip_merlin.online.training.trainer import OnlineTrainer
from cowclip_merlin.system.signals import Stopped
from cowclip_merlin.tables.snapshot import numbers
from cowclip_merlin.training import RunSettings

pytestmark = pytest.mark.runs


def command(drifting, out, **more):
    run = RunSettings(
        model="deepfm", batch_size=512, mlp=(8,), embedding_dim=4, update="lazy", seed=3
    )
    replay = ReplaySettings(batch_days=more.pop("days", 1), sync=more.pop("sync", ("never", "1h")))
    return replay_log(
        [drifting / "log.csv"],
        drifting / "log.csv.yaml",
        OnlineSettings(run=run, capacity=4000),
        replay,
        out=out,
        **more,
    )


def test_the_folder_has_exact_scores_over_time(tmp_path, drifting, capsys):
    rows = command(drifting, tmp_path / "out")
    written = list(csv.DictReader((tmp_path / "out/replay.csv").open()))
    assert list(written[0]) == ["sync", "auc", "log_loss", "rows"]
    assert [{k: str(v) for k, v in row.items()} for row in rows] == written
    found = PredictionFiles(tmp_path / "out/predictions", ("never", "1h")).read()
    table = pd.DataFrame(found)
    assert [row["rows"] for row in rows] == [len(table)] * 2
    for row in rows:
        scores = table[row["sync"]]
        assert row["auc"] == pytest.approx(roc_auc_score(table.label, scores), abs=1e-12)
        assert row["log_loss"] == pytest.approx(log_loss(table.label, scores), rel=1e-5)
    for period, step in (("day", "1D"), ("hour", "1h")):
        by = pd.read_csv(tmp_path / f"out/auc_by_{period}.csv")
        when = pd.to_datetime(table.time, unit="s").dt.floor(step)
        assert pd.to_datetime(by[period]).nunique() == when.nunique()
        one = by[(by.sync == "1h")].set_index(pd.to_datetime(by[by.sync == "1h"][period]))
        for start, part in table.groupby(when):
            assert one.loc[start, "rows"] == len(part)
            if 0 < part.label.sum() < len(part):
                wanted = roc_auc_score(part.label, part["1h"])
                assert one.loc[start, "auc"] == pytest.approx(wanted, abs=1e-12)
            else:
                assert np.isnan(one.loc[start, "auc"])
    facts = json.loads((tmp_path / "out/replay.json").read_text())
    assert facts["events"] == 6000 and facts["scored"] == len(table) and facts["damaged"] == 0
    lines = re.findall(
        r"(2026-01-0\d): ([\d,]+) rows, [\d,]+ ids in the table; AUC %: never (\S+), 1h (\S+)",
        capsys.readouterr().out,
    )
    assert [day for day, *_ in lines] == ["2026-01-02", "2026-01-03"]  # the last one, too
    said = list(lines[0][1:])
    of_day = table[table.time // DAY == table.time.iloc[0] // DAY]
    wanted = [100 * roc_auc_score(of_day.label, of_day[name]) for name in ("never", "1h")]
    assert said == [f"{len(of_day):,}", *(f"{auc:.2f}" for auc in wanted)]
    assert (tmp_path / "out/auc_by_day.svg").read_text().startswith("<?xml")
    with pytest.raises(InputError, match="already holds a run"):
        command(drifting, tmp_path / "out")
    assert command(drifting, tmp_path / "out", resume=True) == rows  # nothing is left to do
    (tmp_path / "out/predictions/1h.bin").write_bytes(b"1234")
    with pytest.raises(InputError, match=r"1h.bin: damaged .*too early"):
        command(drifting, tmp_path / "out", resume=True)
    with pytest.raises(InputError, match=r"another sync \(\['never', '1h'\], not \['never'\]\)"):
        command(drifting, tmp_path / "out", resume=True, sync=("never",))


@pytest.mark.thorough
def test_a_batch_longer_than_an_interval_is_said(tmp_path, drifting, capsys):
    command(drifting, tmp_path / "out", days=2, sync=("2h", "9h"))
    said = capsys.readouterr().out
    span = int(re.search(r"a batch spans (\d+) s", said)[1])
    assert span == pytest.approx(DAY * 512 / 2000, rel=0.01)
    assert "the copies synced every 2h were synced before each batch" in said
    most = int(re.search(r"use a --batch-size of (\d+) or less", said)[1])
    assert most == int(512 * 7200 / span)


@pytest.mark.thorough
def test_a_signal_leaves_a_snapshot(tmp_path, drifting, monkeypatch):
    done, train = [], OnlineTrainer.train

    def train_and_signal(self, batch):
        train(self, batch)
        done.append(batch)
        if len(done) == 6:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(OnlineTrainer, "train", train_and_signal)
    with pytest.raises(Stopped):
        command(drifting, tmp_path / "out")
    assert numbers(tmp_path / "out/snapshots") == [sum(map(len, done))]
    monkeypatch.undo()
    assert command(drifting, tmp_path / "out", resume=True) == command(drifting, tmp_path / "two")
    assert final_state(tmp_path / "out") == final_state(tmp_path / "two")


@pytest.mark.thorough
def test_one_class_has_log_loss_and_no_auc(tmp_path, drifting, capsys):
    lines = (drifting / "log.csv").read_text().splitlines()
    ones = [line for line in lines[1:] if line.startswith("0,")]
    (tmp_path / "log.csv").write_text("\n".join([lines[0], *ones]) + "\n")
    (tmp_path / "log.csv.yaml").write_text((drifting / "log.csv.yaml").read_text())
    rows = command(tmp_path, tmp_path / "out")
    assert [row["auc"] for row in rows] == ["", ""] and rows[0]["log_loss"] > 0
    assert "one label, so there is no AUC" in capsys.readouterr().out


def test_nothing_of_others_is_replaced(tmp_path, drifting, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.csv").write_text("keep")
    with pytest.raises(InputError, match=r"holds 'mine.csv'; "):
        command(drifting, out)
    (out / "mine.csv").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(OnlineTrainer, "train", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            command(drifting, out)
    assert not (out / "config.json").exists()  # so that it can be tried again
    rows = command(drifting, out)
    (out / "config.json").unlink()
    with pytest.raises(InputError, match="already holds a run"):  # of which nothing is known
        command(drifting, out, days=2)
    assert [row["sync"] for row in rows] == ["never", "1h"]


"""Weights of events in the metrics of a stream and of a replay."""


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
def weighted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng, n = np.random.default_rng(5), 1200
    columns = {"click": rng.integers(0, 2, n), "time": 1_700_000_000 + 120 * np.arange(n)}
    columns |= {"request": [f"r{i}" for i in range(n)], "item": rng.integers(0, 20, n)}
    frame = pd.DataFrame(columns | {"w": rng.integers(0, 5, n) / 2})
    frame.to_csv("log.csv", index=False)
    text = "label: click\ntime: time\nkey: request\ncategorical: [item]\nweight: w\n"
    Path("f.yaml").write_text(text, encoding="utf-8")
    return frame


MODEL = ["--model", "deepfm", "--batch-size", "64", "--mlp", "8", "--capacity", "4000"]


def test_a_replay_uses_the_weights(weighted):
    words = ["online", "replay", "log.csv", *MODEL, "--batch-days", "0.5", "--sync", "1h"]
    assert main([*words, "--features", "f.yaml", "--out", "f"]) == 0
    (row,) = csv.DictReader(Path("f/replay.csv").read_text(encoding="utf-8").splitlines())
    found = PredictionFiles(Path("f/predictions"), ["1h"], weighted=True).read()
    np.testing.assert_array_equal(found["weight"], weighted.w[-len(found["weight"]) :])
    given = {"sample_weight": found["weight"]}
    expected = roc_auc_score(found["label"], found["1h"], **given)
    assert float(row["auc"]) == pytest.approx(expected, abs=1e-12)
    assert float(row["log_loss"]) == pytest.approx(
        log_loss(found["label"], found["1h"].astype(float), **given), rel=1e-6
    )
