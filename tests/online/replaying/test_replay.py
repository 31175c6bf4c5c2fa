"""A replay scores with the model as of each sync, and goes on bit by bit after any stop."""

import itertools
import logging
import re
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replays import LOG, SYNC, final_state, replay_of
from tiers import thorough

from cowclip_merlin.batch import Ids
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.events import Events
from cowclip_merlin.online.replaying.replay import BatchReader, ServingCopy
from cowclip_merlin.online.replaying.replay_results import (
    DAY,
    LABEL,
    TIME,
    DayReport,
    PredictionFiles,
)
from cowclip_merlin.online.training.trainer import OnlineTrainer
from cowclip_merlin.tables.snapshot import numbers

pytestmark = pytest.mark.runs


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
    inputs = {"categorical": rows.values, "continuous": batch.numbers}
    return trainer.model.predict_on_batch(inputs)[:, 0]


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("model", "table", "sync"),
    [
        ("deepfm", {}, SYNC),
        thorough("dcnv2", {"absent": "zeros"}, ("never", "5h")),
        thorough("wide_and_deep", {"max_rows": 500}, ("3h",)),
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


class Killed(BaseException):
    """In place of kill -9."""


@pytest.mark.thorough
def test_a_killed_replay_goes_on_bit_by_bit(tmp_path, settings_of, features, events):
    """Killed before, while and after the first event is scored; twice at the same snapshot."""
    settings = settings_of(table={"max_rows": 600})
    whole = replay_of(tmp_path / "whole", OnlineTrainer(settings, features), events)
    whole.run()
    for kill_at in (7, 3, 1):
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


@pytest.mark.thorough
def test_a_damaged_snapshot_names_the_one_before(tmp_path, settings_of, features, events):
    settings = settings_of("dcn")
    replay = replay_of(tmp_path, OnlineTrainer(settings, features), events, ("1h",), every=1e-9)
    replay.run()
    newest = tmp_path / "snapshots" / str(max(numbers(tmp_path / "snapshots")))
    (newest / "trainer.dense0.bin").write_bytes(b"")
    again = replay_of(tmp_path, OnlineTrainer(settings, features), events, ("1h",))
    with pytest.raises(InputError, match=rf"remove {newest} "):
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


"""Batches of a log do not depend on how the log is read."""


def events_of(times):
    n = len(times)
    return Events(
        ids=Ids(np.arange(n)[:, None]),
        numbers=np.zeros((n, 1), np.float32),
        labels=np.zeros(n, np.int8),
        times=np.array(times, np.int64),
    )


def pieces_of(events, cuts):
    ends = sorted({0, *cuts, len(events)})
    return [events.filter(slice(a, b)) for a, b in itertools.pairwise(ends)]


def ids_of(batches):
    return [batch.ids.values[:, 0].tolist() for batch in batches]


def expected_batches(times, size, before, first=0):
    """Equal parts of the events before a time, then of the others."""
    cut = max(first, sum(t < before for t in times))
    parts = []
    for start, end in ((first, cut), (cut, len(times))):
        parts += [list(range(i, min(i + size, end))) for i in range(start, end, size)]
    return parts


@settings(max_examples=200)
@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=40).map(sorted),
    st.lists(st.integers(1, 39), max_size=6),
    st.integers(1, 9),
    st.integers(0, 21),
)
def test_batches_depend_on_the_position_only(times, cuts, size, before):
    events = events_of(times)
    cuts = [cut for cut in cuts if cut < len(times)]
    reader = BatchReader(pieces_of(events, cuts), size)
    assert reader.first_time() == times[0]
    found = [*reader.batches(before=before), *reader.batches()]
    wanted = expected_batches(times, size, before)
    assert ids_of(found) == wanted
    assert reader.first_time() is None
    for done in range(len(wanted)):  # a reader that starts later
        skip = sum(map(len, wanted[:done]))
        again = BatchReader(pieces_of(events, cuts), size, skip=skip)
        assert ids_of([*again.batches(before=before), *again.batches()]) == wanted[done:]
        again = BatchReader([events], size, skip=skip)
        batches = again.batches(before=before)
        assert ids_of([*batches, *again.batches()]) == wanted[done:]
