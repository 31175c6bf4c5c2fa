"""A log in memory, a pretended trainer with an obvious state, and a slow server to compare with."""

import numpy as np

from cowclip_merlin.batch import Ids
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.columns import CategoricalColumn
from cowclip_merlin.online.events.events import Events
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.logs.message_log import Message, MessagesLost
from cowclip_merlin.online.served_model import ServedModel
from cowclip_merlin.online.sync.sync_message import (
    DENSE,
    GENERATION,
    GONE,
    ROWS,
    SNAPSHOT,
    SYNCED,
    SyncMessage,
)
from cowclip_merlin.tables.serving_table import ServingTable

FIELDS, IDS, CAPACITY, DIMS = 2, 7, 40, (3, 1)
EVERY_ID = np.stack([np.arange(IDS)] * FIELDS, axis=1)
FEATURES = LogFeatures(
    label="y", time="t", categorical=tuple(CategoricalColumn(name=n) for n in ("a", "b"))
)


class ListLog:
    """A log that loses what the test takes away from it."""

    name = "a list"

    def __init__(self):
        self.values, self.trimmed, self.away = [], 0, None

    def append(self, values):
        self.values += values
        return self.end()

    def read(self, position, most, wait=0.0):
        if self.away:
            raise self.away
        if position[0] < self.trimmed or position[0] > len(self.values):
            raise MessagesLost(f"no message {position[0]}")
        found = self.values[position[0] : position[0] + most]
        return [Message((position[0] + i + 1,), value) for i, value in enumerate(found)]

    def start(self):
        return (self.trimmed,)

    def end(self):
        return (len(self.values),)

    def trim(self, position):
        self.trimmed = position[0]

    def close(self):
        pass


class Bias:
    """In place of the dense part: adds a number to the sum of the rows."""

    def __init__(self):
        self.bias = 0.0

    def set_weights(self, weights):
        self.bias = float(weights[0][0])

    def score(self, rows, numbers, lengths=None):
        return sum(x.sum(axis=(1, 2)) for x in rows) + self.bias


class State(dict):
    """(field, id) -> number in all places of its row; -1 - field for absent ids, "bias"."""

    def row(self, field, id_):
        return self.get((field, id_), self[-1 - field])

    def scores(self):
        width = sum(DIMS)
        return [
            width * sum(self.row(f, i) for f in range(FIELDS)) + self["bias"] for i in range(IDS)
        ]


def first_state():
    return State({-1: 0.0, -2: 0.0, "bias": 0.0})


def messages_of(touched, new, generation, seq, *, most=2):
    """What a trainer sends if these keys of its state may have changed."""
    keys = [k for k in touched if isinstance(k, tuple) and k in new]
    gone = [k for k in touched if isinstance(k, tuple) and k not in new]
    parts = []
    for first in range(0, len(gone), most):
        pairs = np.array(gone[first : first + most], np.int64).reshape(-1, 2)
        parts.append((GONE, {}, arrays_of(pairs, [])))
    absent = [(f, 0) for f in range(FIELDS) if -1 - f in touched]
    pairs = absent + keys
    values = [new[-1 - f] for f, _ in absent] + [new[k] for k in keys]
    for first in range(0, len(pairs), most):
        part = slice(first, first + most)
        count = max(0, min(len(absent) - first, most))
        arrays = arrays_of(np.array(pairs[part], np.int64).reshape(-1, 2), values[part])
        parts.append((ROWS, {"absent": count}, arrays))
    if "bias" in touched:
        parts.append((DENSE, {}, {"dense0": np.array([new["bias"]], np.float32)}))
    parts.append((SYNCED, {"trained": seq}, {}))
    return [
        SyncMessage(kind=kind, generation=generation, seq=seq + i, info=info, arrays=arrays)
        for i, (kind, info, arrays) in enumerate(parts)
    ]


def arrays_of(pairs, values):
    tables = {
        f"table{i}": np.repeat(np.array(values, np.float32)[:, None], d, axis=1)
        for i, d in enumerate(DIMS)
    }
    return {"fields": pairs[:, 0].copy(), "ids": pairs[:, 1].copy()} | tables


def start_message(kind, generation, seq, snapshot, run="RUN"):
    info = {"run": run, "snapshot": snapshot}
    return SyncMessage(kind=kind, generation=generation, seq=seq, info=info)


class Snapshots(dict):
    """number -> State; `load` makes a served model of one, as a follower does."""

    def load(self, run, number, version, columns=None):
        if number not in self:
            raise InputError(f"{run}/snapshots/{number}: no such folder")
        state, table = self[number], ServingTable(FIELDS, CAPACITY, DIMS)
        pairs = np.array([k for k in state if isinstance(k, tuple)], np.int64).reshape(-1, 2)
        absent = np.array([(f, 0) for f in range(FIELDS)], np.int64)
        values = [state[-1 - f] for f in range(FIELDS)] + [state[tuple(k)] for k in pairs.tolist()]
        arrays = arrays_of(np.concatenate([absent, pairs]), values)
        rows = SyncMessage(kind=ROWS, generation=0, seq=0, info={"absent": FIELDS}, arrays=arrays)
        from cowclip_merlin.online.sync.sync_message import changes_of

        table.apply(*changes_of(rows))
        scorer = Bias()
        scorer.bias = state["bias"]
        return ServedModel(FEATURES, table, scorer, version)


class SlowServer:
    """What a server must answer, by a dict and the list of all messages of the log."""

    def __init__(self, snapshots):
        self.snapshots, self.state, self.at, self.version = snapshots, None, None, None
        self.beside = None  # (state, place) until its first sync
        self.lost, self.newest = True, None  # waits for a snapshot of this generation or later

    def begin(self, message):
        state = State(self.snapshots[message.info["snapshot"]])
        self.beside, self.lost = [state, (message.generation, message.seq)], False

    def take(self, message):
        place, names = (message.generation, message.seq), message.kind in (GENERATION, SNAPSHOT)
        at = self.beside[1] if self.beside else self.at
        if self.lost:
            if names and (self.newest is None or message.generation >= self.newest):
                self.begin(message)
        elif place == (at[0], at[1] + 1):
            self.apply(message, place)
        elif place > at and names:  # it holds what is missing
            self.begin(message)
        elif place > at:
            self.lost, self.newest, self.beside = True, at[0], None

    def apply(self, message, place):
        state = self.beside[0] if self.beside else self.state
        fields, ids = (message.arrays.get(n, np.array([])).tolist() for n in ("fields", "ids"))
        if message.kind == GONE:
            for pair in zip(fields, ids, strict=True):
                state.pop(pair, None)
        if message.kind == ROWS:
            values = message.arrays["table0"][:, 0].tolist()
            for i, (f, id_) in enumerate(zip(fields, ids, strict=True)):
                state[-1 - f if i < message.info["absent"] else (f, id_)] = values[i]
        if message.kind == DENSE:
            state["bias"] = float(message.arrays["dense0"][0])
        if self.beside:
            self.beside[1] = place
        else:
            self.at = place
        if message.kind == SYNCED:
            self.state, self.at, self.version, self.beside = state, place, place, None

    def scores(self):
        return None if self.state is None else self.state.scores()


def scores_of(follower):
    """What a follower answers for every id; None while it has no model."""
    if follower.model is None:
        return None
    events = Events(ids=Ids(EVERY_ID), numbers=np.zeros((IDS, 0), np.float32))
    return follower.model.predict(events).probabilities.tolist()
