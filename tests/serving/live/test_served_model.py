"""A server answers what the trainer answers, after every sync; requests beside a sync."""

import gc
import threading
import time
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from published import PublishedTrainer
from sync_logs import DIMS, FEATURES, FIELDS, arrays_of
from tiers import thorough

from cowclip_merlin.batch import Ids
from cowclip_merlin.errors import InputError
from cowclip_merlin.online import FileLog
from cowclip_merlin.online.events.events import Events
from cowclip_merlin.online.served_model import MessagesMissing, ServedModel, Version
from cowclip_merlin.online.sync.sync_message import SyncMessage
from cowclip_merlin.serving.live.follower import Follower
from cowclip_merlin.system.machine import resident_megabytes
from cowclip_merlin.tables import FieldRules
from cowclip_merlin.tables.serving_table import ServingTable

REQUESTS = 10_000


def requests_of(events, seed):
    """Random events of the log; a third of their ids are absent."""
    rng = np.random.default_rng(seed)
    some = events.filter(rng.integers(0, len(events), REQUESTS))
    ids = some.ids.values
    ids = np.where(rng.random(ids.shape) < 0.3, ids + 10**9, ids)
    return replace(some, ids=some.ids.with_values(ids))


def with_rules(features, **rules):
    columns = [replace(column, rules=FieldRules(**rules)) for column in features.categorical]
    return replace(features, categorical=tuple(columns))


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("model", "table", "rules"),
    [
        ("deepfm", {"max_rows": 300}, {"admit": 2}),
        thorough("dcnv2", {"absent": "zeros", "max_rows": 300}, {"ttl": 20_000}),
        thorough("wide_and_deep", {}, {"ttl": 20_000}),
    ],
)
def test_served_equals_offline(tmp_path, settings_of, features, events, model, table, rules):
    """`tests/columns/test_stream` serves a model of every role."""
    log, features = FileLog(tmp_path / "log"), with_rules(features, **rules)
    made = PublishedTrainer(settings_of(model, table), features, tmp_path / "run", log)
    made.start()
    first, late = Follower(lambda: log), None
    for sync in range(8):
        for batch in range(2):
            begin = (2 * sync + batch) * 256
            made.train(events.filter(slice(begin, begin + 256)))
        if sync == 5:  # the trainer goes on in a new generation
            made.start()
        made.sync()
        if sync == 3:
            made.snapshot()
            late = Follower(lambda: log)
        asked = requests_of(events, sync)
        wanted = made.trainer.predict(asked)
        for follower in filter(None, (first, late)):
            while follower.step():
                pass
            found = follower.model.predict(asked)
            assert np.abs(found.probabilities - wanted).max() <= 1e-6
            assert found.version.info["trained"] == made.trained
            assert len(follower.model) == made.trainer.table.num_rows
            assert found.absent == np.count_nonzero(
                made.trainer.table.lookup(asked.ids).values < made.trainer.table.num_fields
            )
    statistics = made.trainer.table.statistics()
    assert not table.get("max_rows") or statistics.evicted
    assert not rules.get("ttl") or statistics.expired
    assert [f.counts.swaps for f in (first, late)] == [2, 2]


@pytest.fixture
def made(tmp_path, settings_of, features, events):
    trainer = PublishedTrainer(
        settings_of("dcn"), features, tmp_path / "run", FileLog(tmp_path / "log")
    )
    trainer.train(events.filter(slice(0, 256)))
    trainer.start()
    return trainer


def test_moments_are_not_read(made):
    """The largest files of a snapshot, with the weights, are those of Adam's moments."""
    folder = made.run / "snapshots" / str(made.number)
    removed = [*folder.glob("*.m.bin"), *folder.glob("*.v.bin"), *folder.glob("*counters*")]
    for file in removed:
        file.unlink()
    assert len(removed) == 3
    assert len(ServedModel.from_snapshot(made.run, made.number, Version(1, 0, {}))) > 50


@pytest.mark.parametrize("name", ["config.json", "snapshots/1/trainer.table.ids.bin"])
def test_a_missing_file_is_one_line(made, name):
    (made.run / name).unlink()
    with pytest.raises(InputError, match=name.rpartition("/")[2]) as caught:
        ServedModel.from_snapshot(made.run, 1, Version(1, 0, {}))
    assert "\n" not in str(caught.value)


@pytest.mark.thorough
def test_generations_take_no_more_memory(made):
    """A model that was replaced goes away, with its graph."""
    follower = Follower(lambda: made.log)
    sizes = []
    for _ in range(8):
        made.start()
        made.sync()
        while follower.step():
            pass
        gc.collect()
        sizes.append(resident_megabytes())
    assert sizes[-1] - sizes[2] < 25, sizes


IDS = 3000
WEIGHT = 1 << 12  # a row holds WEIGHT * id + number of its sync, and an absent one -1


class Rows:
    """In place of the dense part: checks the rows that it gets."""

    def __init__(self):
        self.wrong = []

    def set_weights(self, weights):
        pass

    def score(self, rows, numbers, lengths=None):
        ids = numbers[:, 0].astype(np.int64)
        values = np.concatenate(rows, axis=2).astype(np.int64)
        whole = (values == values[:, :, :1]).all()
        known = (values[:, :, 0] // WEIGHT == ids[:, None]) | (values[:, :, 0] == -1)
        if not (whole and known.all()):
            self.wrong.append(values)
        return np.zeros(len(ids))


def model_of(scorer):
    table = ServingTable(FIELDS, FIELDS * IDS + FIELDS + 9, DIMS)
    for rows in table.tables:
        rows[:FIELDS] = -1
    return ServedModel(FEATURES, table, scorer, Version(1, 0, {}))


def send(model, kind, pairs, values=()):
    arrays = arrays_of(np.array(pairs, np.int64), list(values))
    info = {"absent": 0}
    message = SyncMessage(kind=kind, generation=1, seq=model.seq + 1, info=info, arrays=arrays)
    model.apply(message)


@contextmanager
def running(target, number, stop):
    """Threads that run within the block; `stop` ends them."""
    threads = [threading.Thread(target=target, args=(i,)) for i in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_no_request_reads_a_torn_row_or_that_of_another_id():
    """Ids come, change and go, rows are used again, and the index doubles, under requests."""
    scorer, rng, stop, asked = Rows(), np.random.default_rng(1), threading.Event(), []
    model = model_of(scorer)

    def ask(seed):
        rng = np.random.default_rng(seed)
        while not stop.is_set():
            ids = rng.integers(0, IDS, (50, 1))
            model.predict(Events(ids=Ids(ids.repeat(FIELDS, 1)), numbers=ids.astype(np.float32)))
            asked.append(1)

    with running(ask, 2, stop):
        for sync in range(WEIGHT):
            ids = rng.permutation(IDS)[:400]
            pairs = [(int(i) % FIELDS, int(i)) for i in ids]
            send(model, "rows", pairs, [WEIGHT * i + sync for _, i in pairs])
            send(model, "gone", pairs[: 1 + sync % 399])
            if sync > 150 and len(asked) > 500:
                break
    assert not scorer.wrong
    assert len(asked) > 500 and len(model) > 100


def test_dense_weights_change_together():
    class Slow:
        pair, wrong = (0, 0), 0

        def set_weights(self, weights):
            self.pair = (weights[0][0], self.pair[1])
            time.sleep(0.001)
            self.pair = (weights[0][0], weights[0][0])

        def score(self, rows, numbers, lengths=None):
            first = self.pair[0]
            time.sleep(0.0005)
            self.wrong += first != self.pair[1]
            return np.zeros(1)

    scorer = Slow()
    model, stop = model_of(scorer), threading.Event()

    def ask(_):
        while not stop.is_set():
            model.predict(Events(ids=Ids(np.zeros((1, FIELDS), int)), numbers=np.zeros((1, 1))))

    with running(ask, 3, stop):
        for seq in range(1, 100):
            arrays = {"dense0": np.array([float(seq)], np.float32)}
            model.apply(SyncMessage(kind="dense", generation=1, seq=seq, arrays=arrays))
    assert scorer.wrong == 0 and scorer.pair == (99.0, 99.0)


def test_messages_come_once_and_in_order():
    model = model_of(Rows())
    send(model, "rows", [(0, 1)], [WEIGHT])
    message = SyncMessage(kind="synced", generation=1, seq=1)
    assert model.apply(message) is False and model.version.seq == 0
    with pytest.raises(MessagesMissing, match="message 3 of generation 1 "):
        model.apply(SyncMessage(kind="synced", generation=1, seq=3))
    assert model.apply(SyncMessage(kind="synced", generation=1, seq=2, info={"trained": 9}))
    assert model.version == Version(1, 2, {"trained": 9})


def test_more_ids_than_the_capacity_are_refused():
    model = model_of(Rows())
    pairs = [(0, i) for i in range(FIELDS * IDS + 20)]
    with pytest.raises(InputError, match="capacity of the trainer"):
        send(model, "rows", pairs, [0] * len(pairs))
    assert len(model) == 0 and model.seq == 0
