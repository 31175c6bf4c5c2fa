"""A follower has the rows that a slow server of dicts has, whatever the log does."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sync_logs import (
    DIMS,
    FIELDS,
    IDS,
    ListLog,
    SlowServer,
    Snapshots,
    State,
    first_state,
    messages_of,
    scores_of,
    start_message,
)

from cowclip_merlin.online.logs.message_log import LogUnavailable
from cowclip_merlin.online.sync.sync_message import GENERATION, SNAPSHOT, SyncMessage
from cowclip_merlin.serving.live import follower as follower_module
from cowclip_merlin.serving.live.follower import Follower


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(follower_module, "RETRY", 0.0)


class Trainer:
    """Changes a state at random, and says what a real one would say."""

    def __init__(self, log, snapshots):
        self.log, self.snapshots, self.numbers = log, snapshots, itertools.count()
        self.state, self.values = first_state(), itertools.count(1)
        self.unsent, self.unsaved = {}, {}  # keys, in order
        self.generation = self.seq = 0
        self.saved, self.last = None, []

    def send(self, *messages, lose=()):
        self.last = [m.encode() for i, m in enumerate(messages) if i not in lose]
        self.log.append(self.last)
        self.seq += len(messages)

    def start(self):
        """Begin a generation: from nothing, or from the last snapshot."""
        if self.saved is None:
            self.saved = self.save()
        self.generation, self.seq = self.generation + 1, 0
        self.send(start_message(GENERATION, self.generation, 0, self.saved))
        self.unsent = dict(self.unsaved)

    def save(self):
        number = next(self.numbers)
        self.snapshots[number] = State(self.state)
        return number

    def snapshot(self):
        self.saved, self.unsaved = self.save(), {}
        self.send(start_message(SNAPSHOT, self.generation, self.seq, self.saved))

    def change(self, pairs):
        for field, id_ in pairs:
            key = (field, id_) if id_ < IDS else -1 - field
            if id_ == IDS + 1:
                key = "bias"
            self.unsent[key] = self.unsaved[key] = None
            if key in self.state and isinstance(key, tuple) and id_ % 2:
                del self.state[key]
            else:
                self.state[key] = float(next(self.values))

    def sync(self, lose=()):
        messages = messages_of(self.unsent, self.state, self.generation, self.seq)
        self.send(*messages, lose=lose)
        self.unsent = {}

    def repeat(self):
        self.log.append(self.last)


PAIRS = st.lists(st.tuples(st.integers(0, FIELDS - 1), st.integers(0, IDS + 1)), max_size=6)
WHOLE_SYNCS = st.one_of(
    st.tuples(st.just("change"), PAIRS),
    st.tuples(st.just("sync"), st.just(())),
    st.tuples(st.just("snapshot"), st.none()),
    st.tuples(st.just("start"), st.none()),
    st.tuples(st.just("repeat"), st.none()),
    st.tuples(st.just("damaged"), st.none()),
    st.tuples(st.just("away"), st.none()),
)
LOST_MESSAGES = st.tuples(st.just("sync"), st.sets(st.integers(0, 5), max_size=1))
ACTIONS = st.one_of(WHOLE_SYNCS, LOST_MESSAGES)


def follower_of(log, snapshots):
    return Follower(lambda: log, snapshots.load)


def act(trainer, log, name, what):
    if name in ("sync", "change"):
        getattr(trainer, name)(what)
    elif name in ("snapshot", "start", "repeat"):
        getattr(trainer, name)()
    elif name == "damaged":
        log.append([b"no message"])
    else:
        log.away = LogUnavailable("no answer")


@settings(max_examples=300)
@given(st.lists(ACTIONS, max_size=40), st.booleans())
def test_a_follower_answers_as_the_slow_server(actions, snapshot_first):
    log, snapshots = ListLog(), Snapshots()
    trainer, follower, slow = Trainer(log, snapshots), follower_of(log, snapshots), None
    trainer.start()
    if snapshot_first:
        trainer.snapshot()
    slow, seen, versions = SlowServer(snapshots), 0, []
    for name, what in actions:
        act(trainer, log, name, what)
        follower.step()
        if log.away:
            log.away = None
            assert follower.problem == "no answer"
            continue
        follower.step()
        for value in log.values[seen:]:
            if value != b"no message":
                slow.take(SyncMessage.decode(value))
        seen = len(log.values)
        assert scores_of(follower) == slow.scores()
        if follower.model:
            versions.append(follower.model.version[:2])
            assert versions[-1] == slow.version
    assert versions == sorted(versions)
    trainer.snapshot()  # after which nothing is missing
    trainer.change([(0, 0), (1, 1), (0, 2)])
    trainer.sync()
    for _ in range(2):
        follower.step()
    assert scores_of(follower) == trainer.state.scores()
    assert follower.waiting_for is None


@settings(max_examples=200)
@given(st.lists(WHOLE_SYNCS, max_size=30), st.sets(st.integers(0, 20)))
def test_a_server_that_starts_late_has_a_state_that_the_trainer_had(actions, removed):
    """It reads the whole log, of which snapshots and the beginning may be gone.

    No message is lost within a sync: a server has taken over those before the gap.
    """
    log, snapshots, had = ListLog(), Snapshots(), []
    trainer = Trainer(log, snapshots)
    trainer.start()
    for name, what in actions:
        if name != "away":
            act(trainer, log, name, what)
        had.append(trainer.state.scores())
        if name == "snapshot" and len(trainer.snapshots) > 2:
            log.trim((max(len(log.values) - 9, 0),))
    for number in removed:
        snapshots.pop(number, None)
    follower = follower_of(log, snapshots)
    for _ in range(4):
        follower.step()
    assert scores_of(follower) in [None, *had]
    trainer.snapshot()
    trainer.change([(0, 0)])
    trainer.sync()
    for _ in range(4):
        follower.step()
    assert scores_of(follower) == trainer.state.scores()


@pytest.fixture
def followed():
    log, snapshots = ListLog(), Snapshots()
    trainer, follower = Trainer(log, snapshots), follower_of(log, snapshots)
    trainer.start()
    trainer.change([(0, 1), (1, 2)])
    trainer.sync()
    follower.step()
    follower.step()
    assert scores_of(follower) == trainer.state.scores()
    return trainer, follower, log


def test_a_new_generation_serves_from_its_first_sync_on(followed):
    """Its snapshot is older than what the server has."""
    trainer, follower, _ = followed
    before, model = scores_of(follower), follower.model
    trainer.start()
    follower.step()
    assert scores_of(follower) == before and follower.model is model
    assert "sent a sync" in follower.waiting_for
    trainer.change([(0, 5)])
    trainer.sync()
    follower.step()
    assert scores_of(follower) == trainer.state.scores()
    assert follower.waiting_for is None and follower.model is not model


def test_a_log_that_was_replaced_is_read_from_its_start(followed):
    """With another trainer, whose generations count from 1 again."""
    trainer, follower, log = followed
    for _ in range(3):
        trainer.start()
        trainer.sync()
    follower.step()
    log.values.clear()
    other = Trainer(log, trainer.snapshots)
    other.numbers = trainer.numbers
    other.start()
    other.change([(1, 4)])
    other.sync()
    for _ in range(3):
        follower.step()
    assert scores_of(follower) == other.state.scores()


def test_trimmed_messages_are_loaded_with_a_snapshot(followed):
    trainer, follower, log = followed
    for i in range(3):
        trainer.change([(0, i), (1, 2 * i)])
        trainer.sync()
    trainer.snapshot()
    log.trim((len(log.values) - 1,))
    trainer.change([(0, 6)])
    trainer.sync()
    for _ in range(3):
        follower.step()
    assert scores_of(follower) == trainer.state.scores()
    assert follower.counts.gaps == 1 and follower.problem is None


def test_a_missing_snapshot_is_tried_again(followed):
    """As where the run folder is copied from another machine."""
    trainer, _, _ = followed
    trainer.snapshot()
    late = trainer.snapshots.pop(trainer.saved)
    other = follower_of(trainer.log, trainer.snapshots)
    trainer.snapshots.pop(0)
    other.step()
    assert other.model is None and "no such folder" in other.waiting_for
    trainer.snapshots[trainer.saved] = late
    trainer.sync()
    other.step()
    other.step()
    assert scores_of(other) == trainer.state.scores() and other.problem is None


WRONG = {
    "another field": {"fields": np.array([FIELDS])},
    "a field below 0": {"fields": np.array([-1])},
    "other lengths": {"ids": np.array([1, 2])},
    "another width": {"table0": np.zeros((1, 2), np.float32)},
    "another type": {"table0": np.zeros((1, 3), np.float64)},
    "one more table": {"table2": np.zeros((1, 1), np.float32)},
}


@pytest.mark.parametrize("what", WRONG)
def test_a_message_of_another_model_changes_nothing(followed, what):
    trainer, follower, _ = followed
    before = scores_of(follower)
    arrays = {"fields": np.array([0]), "ids": np.array([1])}
    arrays |= {f"table{i}": np.zeros((1, d), np.float32) for i, d in enumerate(DIMS)} | WRONG[what]
    where = {"generation": 1, "seq": trainer.seq}
    trainer.send(SyncMessage(kind="rows", info={"absent": 0}, arrays=arrays, **where))
    follower.step()
    assert scores_of(follower) == before
    assert "of another model" in follower.problem and follower.counts.damaged == 1
    trainer.change([(0, 1)])
    trainer.sync()
    follower.step()
    assert "came after" in follower.problem and follower.counts.gaps == 1
    trainer.snapshot()
    follower.step()
    assert scores_of(follower) == before and "soon as" in follower.waiting_for
    trainer.sync()
    follower.step()
    assert scores_of(follower) == trainer.state.scores() and follower.waiting_for is None
