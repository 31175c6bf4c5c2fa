"""A replay scores with the model as of each sync, and goes on bit by bit after any stop."""

import csv
import json
import logging
import os
import re
import shutil
import signal

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.batches import BatchReader
from cowclip_merlin.online.day_report import DAY, DayReport
from cowclip_merlin.online.predictions import LABEL, TIME, PredictionFiles
from cowclip_merlin.online.replay import Replay, ReplaySettings
from cowclip_merlin.online.replay_folder import replay_log
from cowclip_merlin.online.serving_copy import ServingCopy
from cowclip_merlin.online.settings import OnlineSettings
from cowclip_merlin.online.trainer import OnlineTrainer
from cowclip_merlin.tables.snapshot import load_snapshot, numbers
from cowclip_merlin.training.graceful_stop import Stopped
from cowclip_merlin.training.run_settings import RunSettings

SYNC = ("never", "1d", "5h", "30min")
LOG = logging.getLogger("test")


def replay_of(folder, trainer, events, sync=SYNC, days=1.0, every=0.0):
    def reader(skip):
        pieces = [events.filter(slice(a, a + 700)) for a in range(0, len(events), 700)]
        return BatchReader(pieces, trainer.settings.run.batch_size, skip=skip)

    settings = ReplaySettings(batch_days=days, sync=sync, snapshot_every=every)
    return Replay(trainer, reader, settings, folder, LOG)


def simple_replay(trainer, events, intervals, days):
    """At each sync, score all batches up to the next sync with the model as it is then."""
    size, start = trainer.settings.run.batch_size, int(events.times[0] + days * DAY)
    first = int(np.searchsorted(events.times, start))
    parts = [events.filter(slice(a, min(a + size, first))) for a in range(0, first, size)]
    for batch in parts:
        trainer.train(batch)
    online = [events.filter(slice(a, a + size)) for a in range(first, len(events), size)]
    scores = {seconds: [] for seconds in intervals}
    for i, batch in enumerate(online):
        for seconds, mine in scores.items():

            def period(batch, seconds=seconds):  # of the sync that a batch sees
                return 0 if seconds is None else (int(batch.times[-1]) - start) // seconds

            for later in online[i:] if i == len(mine) else ():
                if period(later) == period(batch):
                    mine.append(score(trainer, later))
        trainer.train(batch)
    return {seconds: np.concatenate(mine) for seconds, mine in scores.items()}


def score(trainer, batch):
    rows = trainer.table.lookup(batch.ids)
    inputs = {"categorical": rows, "continuous": batch.numbers}
    return trainer.model.predict_on_batch(inputs)[:, 0]


@pytest.mark.parametrize(
    ("model", "table", "sync"),
    [
        ("deepfm", {}, SYNC),
        ("dcnv2", {"absent": "zeros"}, ("never", "5h")),
        ("wide_and_deep", {"max_rows": 500}, ("3h",)),
        ("dcn", {"capacity": 5000}, ("1h",)),
    ],
)
def test_scores_are_those_of_the_model_at_each_sync(
    tmp_path, settings_of, features, events, model, table, sync
):
    replay = replay_of(tmp_path, OnlineTrainer(settings_of(model, table), features), events, sync)
    replay.run()
    found = replay.predictions.read()
    assert np.array_equal(found[LABEL], events.labels[-len(found[LABEL]) :])
    assert np.array_equal(found[TIME], events.times[-len(found[TIME]) :])
    trainer = OnlineTrainer(settings_of(model, table), features)
    wanted = simple_replay(trainer, events, replay.settings.intervals, 1.0)
    for name, scores in zip(sync, wanted.values(), strict=True):
        np.testing.assert_allclose(found[name], scores, rtol=1e-5, atol=1e-7)
    assert len({found[name].tobytes() for name in sync}) == len(sync)


def final_state(folder):
    snapshot = load_snapshot(folder / "snapshots")
    return {name: x.tobytes() for name, x in snapshot.arrays.items()}


class Killed(BaseException):
    """In place of kill -9."""


def test_a_killed_replay_goes_on_bit_by_bit(tmp_path, settings_of, features, events):
    """Killed before, while and after the first event is scored; twice at the same snapshot."""
    settings = settings_of(table={"max_rows": 600})
    whole = replay_of(tmp_path / "whole", OnlineTrainer(settings, features), events)
    whole.run()
    for kill_at in (3, 6, 5, 1, 4):
        trainer = OnlineTrainer(settings, features)
        replay = replay_of(tmp_path / "killed", trainer, events, every=1e-9)
        replay.resume()
        done, train = [], trainer.train

        def train_and_die(batch, done=done, train=train, kill_at=kill_at):
            train(batch)
            done.append(batch)
            if len(done) == kill_at:
                raise Killed

        trainer.train = train_and_die
        with pytest.raises(Killed):
            replay.run()
        replay.predictions.append({n: np.ones(3) for n in (*SYNC, LABEL, TIME)})  # not in it
    last = replay_of(tmp_path / "killed", OnlineTrainer(settings, features), events)
    last.resume()
    assert 0 < last.trained < len(events)
    last.run()
    assert final_state(tmp_path / "killed") == final_state(tmp_path / "whole")
    one, other = last.predictions.read(), whole.predictions.read()
    assert all(np.array_equal(one[name], other[name]) for name in other)


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
    with pytest.raises(InputError, match="already holds a run; use --resume"):
        command(drifting, tmp_path / "out")
    assert command(drifting, tmp_path / "out", resume=True) == rows  # nothing is left to do
    (tmp_path / "out/predictions/1h.bin").write_bytes(b"1234")
    with pytest.raises(InputError, match=r"1h.bin: damaged .it ends too early"):
        command(drifting, tmp_path / "out", resume=True)
    with pytest.raises(InputError, match=r"another sync \(\['never', '1h'\], not \['never'\]\)"):
        command(drifting, tmp_path / "out", resume=True, sync=("never",))


def test_a_batch_longer_than_an_interval_is_said(tmp_path, drifting, capsys):
    command(drifting, tmp_path / "out", days=2, sync=("2h", "9h"))
    said = capsys.readouterr().out
    span = int(re.search(r"a batch spans (\d+) s", said)[1])
    assert span == pytest.approx(DAY * 512 / 2000, rel=0.01)
    assert "the copies synced every 2h were synced before each batch" in said
    most = int(re.search(r"use a --batch-size of (\d+) or less", said)[1])
    assert most == int(512 * 7200 / span)


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


def test_a_log_that_ends_too_early_is_refused_and_leaves_nothing(tmp_path, drifting):
    with pytest.raises(InputError, match="the log ends within the first 9 days"):
        command(drifting, tmp_path / "out", days=9)
    assert not (tmp_path / "out").exists()


def test_there_is_nothing_to_resume(tmp_path, drifting):
    with pytest.raises(InputError, match="no replay to resume"):
        command(drifting, tmp_path / "out", resume=True)
    assert not (tmp_path / "out").exists()


def test_a_day_is_logged_once_however_long_batches_are(tmp_path, caplog):
    """Also after a restart, and if a batch spans several days."""
    files, rng = PredictionFiles(tmp_path, ("1h",)), np.random.default_rng(1)
    report = DayReport(files, ("1h",), LOG)
    with caplog.at_level(logging.INFO, logger="test"):
        for first, last in ((0, 0.5), (0.5, 3.5), (3.5, 3.6), (3.6, 6.2)):
            times = np.sort(rng.integers(int(first * DAY), int(last * DAY), 50))
            labels = rng.random(50) < 0.5
            files.append({LABEL: labels, TIME: times, "1h": rng.random(50)})
            report.update(int(times[-1]), 9)
            if last == 3.6:
                report = DayReport(files, ("1h",), LOG)
        report.close(9)
    days = [line.split(":")[0] for line in caplog.messages]
    assert days == [f"1970-01-0{day}" for day in range(1, 8)]
    rows = [int(re.search(r": (\d+) rows", line)[1]) for line in caplog.messages]
    assert rows == np.bincount(files.read([TIME])[TIME] // DAY).tolist()


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
    with pytest.raises(InputError, match=r"holds 'mine.csv'; give --out a new or empty folder"):
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


def test_a_damaged_snapshot_names_the_one_before(tmp_path, settings_of, features, events):
    settings = settings_of("dcn")
    replay = replay_of(tmp_path, OnlineTrainer(settings, features), events, ("1h",), every=1e-9)
    replay.run()
    newest = tmp_path / "snapshots" / str(max(numbers(tmp_path / "snapshots")))
    (newest / "trainer.dense0.bin").write_bytes(b"")
    again = replay_of(tmp_path, OnlineTrainer(settings, features), events, ("1h",))
    with pytest.raises(InputError, match=rf"remove {newest} to go on from the one before"):
        again.resume()
    shutil.rmtree(newest)
    again.resume()
    assert again.trained > 0


def test_a_copy_that_is_never_synced_remembers_no_changes(settings_of, features, events):
    trainer = OnlineTrainer(settings_of(table={"max_rows": 900}), features)
    copy = ServingCopy(trainer)
    trainer.train(events.filter(slice(0, 200)))
    assert not any(name.startswith("table.changes") for name in trainer.state())
    copy.start()
    assert any(name.startswith("table.changes") for name in trainer.state())
    copy.sync()
    copy.stop()
    trainer.train(events.filter(slice(200, 400)))
    assert not any(name.startswith("table.changes") for name in trainer.state())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sync": ("never", "1 week")}, "sync is '1 week'; give whole seconds"),
        ({"sync": ("1h", "1h")}, "give every value once"),
        ({"sync": ()}, "sync is empty"),
        ({"batch_days": -1.0}, "batch_days is -1.0; give a number from 0 on"),
        ({"snapshot_every": float("nan")}, "snapshot_every is nan"),
    ],
)
def test_settings_that_cannot_be_are_refused(values, message):
    with pytest.raises(InputError, match=message):
        ReplaySettings(**({"batch_days": 1.0, "sync": ("never",)} | values))


@pytest.mark.parametrize(
    ("run", "table", "message"),
    [
        ({"update": "exact"}, {}, "also changes rows that are absent"),
        ({"optimizer": "adagrad"}, {}, "growing tables need adam"),
        ({}, {"capacity": 0}, "capacity is 0"),
        ({}, {"absent": "ones"}, "unknown absent 'ones'"),
        ({"clip": "global"}, {}, "does not take each row by itself.*choose one of cowclip"),
        ({}, {"window": 9, "admission_filter": "probabilistic"}, "window has no effect"),
    ],
)
def test_settings_of_the_model_that_cannot_be_are_refused(settings_of, run, table, message):
    with pytest.raises(InputError, match=message):
        settings_of(table=table, **run)


@pytest.mark.parametrize("table", [{"window": 9}, {"admission_filter": "probabilistic"}])
def test_a_filter_that_counts_nothing_is_refused(settings_of, features, table):
    with pytest.raises(InputError, match=r"has no effect, since no column .* `admit` above 1"):
        OnlineTrainer(settings_of(table=table), features)
