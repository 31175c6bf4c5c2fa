"""`cowclip experiment` on a log, from the command line to the table, the figures and the report."""

import json
import os
import shlex
import shutil
import signal

import numpy as np
import pandas as pd
import pytest
from small_experiment import run_on_log

from cowclip_merlin.cli import main
from cowclip_merlin.errors import Diverged
from cowclip_merlin.experiments.definitions import ReplayLine
from cowclip_merlin.experiments.files import load_experiment
from cowclip_merlin.experiments.on_logs import log_runs, replays
from cowclip_merlin.experiments.on_logs.replays import line_features
from cowclip_merlin.experiments.results import read_replays
from cowclip_merlin.experiments.tables import read_table, table_text
from cowclip_merlin.online.events.features import load_features
from cowclip_merlin.online.training.trainer import OnlineTrainer


@pytest.fixture(scope="module")
def frame(replayed):
    return pd.read_csv(replayed / "results/replays.csv", dtype={"admit": str})


@pytest.mark.thorough
def test_a_replay_serves_all_lines_that_train_the_same(replayed, frame):
    """Two seeds with two intervals, and one more replay of each seed for the other rules."""
    assert len(frame) == 6 and frame.run_id.nunique() == 4
    shared = frame[frame.admit == "1"]
    assert shared.groupby("seed").sync.apply(list).tolist() == [["never", "1h"]] * 2
    printed = (replayed / "printed.txt").read_text()
    assert printed.count("[1/2]") == printed.count("[2/2]") == 2
    for run_id in frame.run_id:
        folder = replayed / "results/runs" / run_id
        assert not (folder / "snapshots").exists() and not (folder / "predictions").exists()
        written = pd.read_csv(folder / "replay.csv").set_index("sync")
        for _, row in frame[frame.run_id == run_id].iterrows():
            assert written.auc[row.sync] == row.auc and written.rows[row.sync] == row.scored
        table = json.loads((folder / "replay.json").read_text())["table"]
        assert set(frame[frame.run_id == run_id].ids_kept) == {sum(table["rows"])}


@pytest.mark.thorough
def test_the_rules_of_a_line_replace_those_of_the_features_file(drifting_log, frame):
    features = load_features(drifting_log / "log.csv.yaml")
    assert features.rules["item"].ttl == 5 * 86_400
    changed = line_features(features, ReplayLine(label="", sync="1h", admit=3, ttl="6h")).rules
    assert {(rules.admit, rules.ttl) for rules in changed.values()} == {(3, 6 * 3600)}
    never = line_features(features, ReplayLine(label="", sync="1h", ttl="never")).rules
    assert {(rules.admit, rules.ttl) for rules in never.values()} == {(1, 0)}
    kept, expired = frame.groupby("admit").ids_kept.max(), frame.groupby("admit").expired.min()
    assert kept["3"] < kept["1"] and expired["3"] > 0
    assert set(frame[frame.admit == "3"].ttl) == {"21600"}


def test_a_hash_has_only_what_was_changed(drifting_log):
    """A new attribute of a column would otherwise rename all earlier runs."""
    features = load_features(drifting_log / "log.csv.yaml")
    item = {"name": "item", "rules": {"ttl": 5 * 86_400}}
    changed = log_runs._changed(features)
    assert changed["categorical"][:2] == [{"name": "user"}, item]
    assert changed["continuous"] == [{"name": "price"}]


@pytest.mark.thorough
def test_the_table_of_intervals_has_paired_gains(replayed, frame):
    table = read_table(replayed / "results/tables/sync.json")
    assert table.columns == ("AUC, %", "gain over 'never', points", "log loss")
    aucs = frame[frame.admit == "1"].pivot(index="seed", columns="sync", values="auc") * 100
    rows = dict(table.rows)
    for label, sync in (("never", "never"), ("1 h", "1h")):
        cell = rows[label][0]
        assert cell.mean == pytest.approx(aucs[sync].mean()) and cell.runs == 2
        assert cell.spread == pytest.approx(aucs[sync].std())
    gain, gains = rows["1 h"][1], aucs["1h"] - aucs["never"]
    assert gain.mean == pytest.approx(gains.mean()) and gain.spread == pytest.approx(gains.std())
    clear = abs(gains.mean()) > 2 * gains.std() / np.sqrt(2)
    expected = ("better" if gains.mean() > 0 else "worse") if clear else "noise"
    assert gain.verdict == expected and gain.published == 0.35
    assert rows["never"][1].text == "" and rows["never"][0].published == 79.43
    losses = frame[(frame.admit == "1") & (frame.sync == "1h")].log_loss
    assert rows["1 h"][2].mean == pytest.approx(losses.mean())
    shown = f"{'1 h':<14}{aucs['1h'].mean():.3f} ±{aucs['1h'].std():.3f} [79.780]"
    assert shown in table_text(table)


def test_the_tables_have_the_ids_kept_and_their_command(replayed, frame):
    rows = dict(read_table(replayed / "results/tables/rules.json").rows)
    kept = frame[frame.sync == "1h"].groupby("admit").ids_kept.mean()
    assert rows["as is"][0].mean == kept["1"]
    assert rows["T is 3 and ttl 6 h"][0].mean == kept["3"]
    table = read_table(replayed / "results/tables/sync.json")
    assert table.command.startswith(
        "cowclip experiment sync.yaml --log LOG --features FEATURES --out RESULTS --seeds 2"
    )
    assert "--embedding-lr 0.01" in table.command and "--dry-run" not in table.command
    assert table.data.startswith("log.csv: 3,000 events, 2,000 of them scored")


def test_the_command_of_a_table_repeats_its_runs(replayed, drifting_log, definitions, capsys):
    paths = {
        "LOG": drifting_log / "log.csv",
        "FEATURES": drifting_log / "log.csv.yaml",
        "RESULTS": replayed / "results",
        "sync.yaml": definitions / "sync.yaml",
    }
    words = shlex.split(read_table(replayed / "results/tables/sync.json").command)[1:]
    assert main([*(str(paths.get(word, word)) for word in words), "--dry-run"]) == 0
    assert "no run is missing" in capsys.readouterr().out


def test_nothing_is_repeated(replayed, drifting_log, definitions, monkeypatch, capsys):
    def refused(*_, **__):
        raise AssertionError("no run is missing")

    monkeypatch.setattr(replays, "replay_log", refused)
    before = (replayed / "results/replays.csv").read_bytes()
    assert run_on_log(drifting_log, definitions, replayed / "results", "sync", "rules") == 0
    assert (replayed / "results/replays.csv").read_bytes() == before
    assert "[1/" not in capsys.readouterr().out


def test_a_dry_run_lists_what_is_missing(replayed, drifting_log, definitions, tmp_path, capsys):
    dry = {"more": ["--dry-run"]}
    assert run_on_log(drifting_log, definitions, tmp_path / "none", "sync", **dry) == 0
    printed = capsys.readouterr().out
    assert "2 runs, the first one tells the time" in printed and "-s2-" in printed
    assert not (tmp_path / "none").exists()
    assert run_on_log(drifting_log, definitions, replayed / "results", "sync", **dry) == 0
    assert "no run is missing" in capsys.readouterr().out
    third = {"more": ["--dry-run", "--seeds", "3"]}
    assert run_on_log(drifting_log, definitions, replayed / "results", "rules", **third) == 0
    assert "2 runs, about " in capsys.readouterr().out


@pytest.mark.thorough
def test_a_stopped_run_resumes(replayed, drifting_log, definitions, tmp_path, monkeypatch, capsys):
    one = {"more": ["--seeds", "1"]}
    steps, train = [], OnlineTrainer.train

    def train_until_stopped(self, events):
        train(self, events)
        steps.append(len(events))
        if len(steps) == 8:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(OnlineTrainer, "train", train_until_stopped)
    try:
        assert run_on_log(drifting_log, definitions, tmp_path, "sync", **one) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert "same command again" in capsys.readouterr().err
    assert read_replays(tmp_path) == [] and len(steps) == 8
    assert run_on_log(drifting_log, definitions, tmp_path, "sync", **one) == 0
    assert sum(steps) == 3000  # no event was trained twice
    whole = [each for each in read_replays(replayed / "results") if each.seed == 1]
    scores = {each.sync: each.auc for each in whole if each.admit == "1"}
    assert {each.sync: each.auc for each in read_replays(tmp_path)} == scores


def test_a_diverged_run_is_recorded(drifting_log, definitions, tmp_path, monkeypatch, capsys):
    def diverge(self, events):
        raise Diverged("training diverged")

    monkeypatch.setattr(OnlineTrainer, "train", diverge)
    one = {"more": ["--seeds", "1"]}
    assert run_on_log(drifting_log, definitions, tmp_path, "sync", **one) == 0
    assert [each.status for each in read_replays(tmp_path)] == ["diverged"] * 2
    assert "every run diverged" in capsys.readouterr().out
    shown = dict(read_table(tmp_path / "tables/sync.json").rows)["1 h"]
    assert {cell.text for cell in shown} == {"diverged"}


@pytest.mark.thorough
def test_what_a_killed_process_left_of_a_recorded_run_goes(
    replayed, drifting_log, definitions, tmp_path
):
    out = shutil.copytree(replayed / "results", tmp_path / "results")
    recorded = out / "runs" / read_replays(out)[0].run_id
    left = [folder / name for folder in (recorded, out / "runs" / "stopped")
            for name in ("snapshots", "predictions")]  # fmt: skip
    for path in left:
        path.mkdir(parents=True)
    assert run_on_log(drifting_log, definitions, out, "sync") == 0
    assert [path.exists() for path in left] == [False, False, True, True]


def test_only_the_missing_interval_is_run(replayed, drifting_log, definitions, tmp_path, capsys):
    """Results belong to a training and an interval."""
    frame = pd.read_csv(replayed / "results/replays.csv")
    lost = (frame.seed == 2) & (frame.admit == 1) & (frame.sync == "1h")
    frame[~lost].to_csv(tmp_path / "replays.csv", index=False)
    assert run_on_log(drifting_log, definitions, tmp_path, "sync", more=["--dry-run"]) == 0
    run_id = frame[lost].run_id.item().replace("-never-1h", "-1h")
    printed = capsys.readouterr().out
    assert f"\n  {run_id}  never, 1 h\n" in printed and "\n1 run, about" in printed


def test_the_report_shows_the_experiments(replayed, tmp_path):
    page = tmp_path / "report.html"
    assert main(["report", str(replayed / "results"), "--out", str(page)]) == 0
    html = page.read_text()
    assert "<h1>Monolith, reproduced</h1>" in html and "Zheng" not in html
    for name in ("sync", "rules", "figure-sync", "figure-sync_over_time", "figure-rules"):
        assert f'id="d1-{name}"' in html
    gain = dict(read_table(replayed / "results/tables/sync.json").rows)["1 h"][1]
    judged = 1 if gain.verdict == "better" else 0
    assert f"{judged} of 1 do" in html and "paper 0.350" in html
    assert "4 replays with 2 seeds, 0 diverged" in html
    assert "Monolith, Table 2" in html and "Table 3" not in html  # what was not run, of a log only


def test_a_damaged_table_of_runs_is_refused(replayed, drifting_log, definitions, tmp_path, capsys):
    text = (replayed / "results/replays.csv").read_text()
    (tmp_path / "replays.csv").write_text(text.replace(",done,", ",dome,", 1))
    assert run_on_log(drifting_log, definitions, tmp_path, "sync") == 2
    assert "replays.csv: line 2 is damaged (status is 'dome'" in capsys.readouterr().err


def test_a_long_log_is_drawn_by_day(replayed, monkeypatch):
    """60 days have more hours than a figure can show."""
    session_results = {"never": read_replays(replayed / "results")[:1]}
    experiment = load_experiment("monolith_sync")
    runs = replayed / "results/runs"
    for most, words in ((14, "hour"), (1, "day")):
        monkeypatch.setattr(replays, "MOST_DAYS", most)
        (axes,) = replays.draw_over_time(experiment, session_results, runs).axes
        assert axes.get_ylabel() == f"AUC of each {words}, %"
