"""In a worker or alone: trains cases on the same batches, and writes the tables and all weights.

Writes OUT/CASE.RANK.npz after `BATCHES` batches.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from cowclip_merlin import workers
from cowclip_merlin.training.run import set_up_tensorflow

if __name__ == "__main__":  # before TensorFlow starts in an import
    set_up_tensorflow(7, "cpu")
    workers.join()

from cowclip_merlin.online import OnlineSettings
from cowclip_merlin.online.events.columns import (
    CategoricalColumn,
    ContinuousColumn,
    ListRules,
    VectorColumn,
)
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.events.messages import encode_messages
from cowclip_merlin.online.training.trainer import OnlineTrainer, StepPipeline
from cowclip_merlin.online.training.workers import ShardTrainer
from cowclip_merlin.tables import FieldRules
from cowclip_merlin.training import RunSettings

BATCHES, SIZE = 24, 64
CONTROL = "uncounted"
"""A case of several workers whose counts are lost."""

LAYERS = "layers"
"""A case of batch normalization with rates of 0; each worker normalizes its part of a batch."""

SIZES = {5: 1, 11: 33, 12: 0}
"""Events of odd batches: also fewer than workers."""

USERS = CategoricalColumn(name="user")
ITEMS = CategoricalColumn(name="item", rules=FieldRules(ttl=200, admit=2))
TAGS = CategoricalColumn(
    name="tags", rules=FieldRules(ttl=300, admit=3), lists=ListRules(separator="|")
)
SEEN = CategoricalColumn(name="seen", lists=ListRules(separator="|"), table="item")
PLAIN = LogFeatures(
    label="click",
    time="time",
    categorical=(USERS, ITEMS),
    continuous=(ContinuousColumn(name="price"),),
)
LISTS = replace(
    PLAIN,
    categorical=(USERS, ITEMS, TAGS, SEEN),
    weight="weight",
    vectors=(VectorColumn(name="text", length=2),),
)
CASES = {
    "plain": (PLAIN, {}, {"rule": "sde"}, 4),
    "zeros": (PLAIN, {"absent": "zeros"}, {}, 1),
    "lists": (LISTS, {}, {"model": "dcnv2"}, 1),
}
MORE = {
    CONTROL: CASES["zeros"],
    LAYERS: (
        PLAIN,
        {},
        {"batch_norm": True, "dropout": 0.2, "mlp": (8,)},
        1,
    ),
}
RATES = {LAYERS: {"embedding_lr": 0.0, "dense_lr": 0.0}}
BY = {1: [*CASES, LAYERS], 2: [*CASES, *MORE]}
"""Cases by the number of workers."""


def event(i):
    """Event i of a stream, one a second; few users and items, so that many ids repeat."""
    return {
        "click": (i * 7) % 3 == 0,
        "time": 1_700_000_000 + i,
        "user": i * i % 53 + i // 100,
        "item": f"i{i // 20 + i % 5}",
        "price": i % 11 / 10,
        "tags": "|".join(f"t{(i + j * j) % 40}" for j in range(i % 5)),
        "seen": "|".join(f"i{i // 25 + j}" for j in range(i % 3)),
        "weight": 1 + i % 3,
        "text": [i % 5 / 5, -(i % 2)],
    }


def batches(features):
    """Batches of events; the offsets of every third one are not 0."""
    import json

    wanted = {features.label, features.time, features.weight, *features.inputs}
    first = 0
    for number in range(BATCHES):
        size = SIZES.get(number, SIZE)
        chosen = [
            {k: v for k, v in event(i).items() if k in wanted} for i in range(first, first + size)
        ]
        first += size
        if not size:
            continue
        events, damage = encode_messages([json.dumps(x).encode() for x in chosen], features)
        assert not damage.reasons
        if number % 3 == 2:
            events = replace(events, offsets=np.linspace(-1, 0, size, dtype=np.float32))
        yield events


def trainer_of(case, group):
    features, table, run, catch_up = (CASES | MORE)[case]
    run = {"model": "deepfm", "batch_size": SIZE, "base_batch_size": SIZE, "mlp": (16, 8)} | run
    rates = {"embedding_lr": 0.01, "dense_lr": 0.01, "l2": 1e-4, "r": 0.0005} | RATES.get(case, {})
    settings = OnlineSettings(
        run=RunSettings(**run, embedding_dim=4, update="lazy", overrides=rates),
        capacity=4000,
        **table,
    )
    if group is None:
        return OnlineTrainer(settings, features, catch_up=catch_up)
    return ShardTrainer(settings, features, group, catch_up=catch_up)


def train(trainer, factors):
    """Train; return the scores of all batches."""
    scored = []
    pipeline = StepPipeline(trainer, lambda labels, scores, _: scored.append(scores))
    for number, events in enumerate(batches(trainer.features)):
        pipeline.submit(events, factors[number % len(factors)])
    pipeline.wait()
    pipeline.close()
    return np.concatenate(scored)


def lose_counts(trainer):
    """Let each worker count an id once, however often it occurs."""
    admit = trainer.admit_beside_step

    def without_counts(events):
        known, rows = admit(events)
        requests = rows.requests._replace(counts=np.ones_like(rows.requests.counts))
        return known, rows._replace(requests=requests)

    trainer.admit_beside_step = without_counts


def contents(trainer):
    """The rows of a table in the order of their fields and ids, and all other weights."""
    state = trainer.state()
    fields, ids = state["table.fields"], state["table.ids"]
    kept = fields != 0xFFFF
    kept[: trainer.table.num_fields] = False
    kept = np.flatnonzero(kept)
    order = kept[np.lexsort((ids[kept], fields[kept]))]
    found = {"fields": fields[order], "ids": ids[order]}
    found["last_seen"] = state["table.last_seen"][order]
    tables = [name for name in state if name.startswith("table.table")]
    found |= {name: state[name][order] for name in tables}
    absent = slice(trainer.table.num_fields)
    found |= {f"absent {name}": state[name][absent] for name in tables}
    found |= {name: x for name, x in state.items() if name.startswith(("dense", "optimizer"))}
    statistics = trainer.table.statistics()
    found |= {x: np.array(getattr(statistics, x)) for x in ("expired", "refused", "events")}
    return found | {"clock": np.array(trainer.table.clock)}


def main(out):
    group = workers.current()
    for case in BY[1 if group is None else group.size]:
        trainer = trainer_of(case, group)
        if case == CONTROL:
            lose_counts(trainer)
        scores = train(trainer, (1, (CASES | MORE)[case][-1]))
        found = contents(trainer) | {"scores": scores}
        found["moving"] = [x.numpy() for x in trainer.model.blocks[0].statistics]
        found["sent"] = np.array(group.traffic.sent if group else 0)
        np.savez(Path(out) / f"{case}.{group.rank if group else 0}.npz", **found)


if __name__ == "__main__":
    import sys

    main(sys.argv[1])
