"""The four models of the paper on tables that grow are equal to fixed ones."""

import resource
from dataclasses import replace

import numpy as np
import pytest
from growing_models import (
    CAPACITY,
    FIELDS,
    IDS,
    SMALL,
    batch_of,
    batches,
    cowclip,
    growing,
    raw,
    trainer,
)

from cowclip_merlin.models import MODELS, growing_table
from cowclip_merlin.tables import FieldRules


def fill(fixed, table):
    """Give a fused model the first values of all ids, in its own order of rows."""
    fields, numbers = np.repeat(np.arange(len(FIELDS)), IDS), np.tile(np.arange(IDS), len(FIELDS))
    for layer, memory in zip(fixed.row_sync.layers, table.memory):
        first = replace(memory, w=np.empty(layer.table.shape, np.float32), slots={})
        first.initialize(np.arange(len(fields), dtype=np.int32), fields, raw(numbers))
        layer.table.assign(first.w)


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("name", "backend", "inner"),
    [
        *((name, "numba", None) for name in MODELS if name != "din"),
        ("deepfm", "tensorflow", None),
        ("deepfm", "numba", "rowwise"),
        ("deepfm", "tensorflow", "rowwise"),
        ("deepfm", "numba", "adagrad"),
    ],
)
def test_a_growing_table_trains_to_the_numbers_of_a_fixed_one(tf, schema_of, name, backend, inner):
    model, fixed = (
        growing(name),
        MODELS[name](schema_of(dict.fromkeys(FIELDS, IDS), ("x",)), **SMALL),
    )
    ours, theirs = (cowclip(backend=backend, inner=inner) for _ in range(2))
    table = growing_table(model, ours)
    table.track_changes()
    fill(fixed, table)
    step, fixed_step = trainer(tf, model, ours), trainer(tf, fixed, theirs)
    for now, (ids, x, label) in enumerate(batches(60)):
        found = step(table.admit(raw(ids), now), x, label)
        wanted = fixed_step(ids.astype(np.int32), x, label)
        for a, b in zip(found, wanted):
            assert np.array_equal(a, b), now
    assert table.num_rows == IDS * len(FIELDS)
    everyone = np.tile(np.arange(IDS)[:, None], len(FIELDS))
    rows, fused = table.lookup(raw(everyone)), everyone + IDS * np.arange(len(FIELDS))
    for layer, other in zip(model.row_sync.layers, fixed.row_sync.layers):
        slots = ["accumulator"] if inner else ["m", "v"]
        arrays = layer.table, *(ours.get_slot(layer.table, slot) for slot in slots)
        others = other.table, *(theirs.get_slot(other.table, slot) for slot in slots)
        for a, b in zip(arrays, others):
            assert np.array_equal(tf.gather(a, rows), tf.gather(b, fused))
            assert np.ptp(tf.gather(a, rows)) > 0
    found, wanted = (
        model.predict_on_batch(batch_of(rows)),
        fixed.predict_on_batch(batch_of(everyone)),
    )
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize("inner", [None, "rowwise", "adagrad"])
def test_an_id_that_expired_and_came_back_is_a_new_one(tf, inner):
    model, optimizer = growing(), cowclip(inner=inner)
    table = growing_table(model, optimizer, fields={"b": FieldRules(ttl=10)})
    step = trainer(tf, model, optimizer)
    ids = np.array([[1, 2, 3], [1, 2, 3]])
    rows = table.admit(ids, 0)
    step(rows, np.ones([2, 1], np.float32), np.ones([2, 1], np.float32))
    trained = [memory.w[rows[0]].copy() for memory in table.memory]
    table.admit(np.array([[1, 9, 3]]), 100)
    assert table.expire(CAPACITY) == 1 and table.lookup(ids)[0, 1] == 1  # absent row of field b
    again = table.admit(ids, 101)
    assert np.array_equal(again, rows)  # the row is used again
    fresh = growing()
    other = growing_table(fresh, cowclip())
    new = other.admit(ids, 0)
    for memory, reference, w in zip(table.memory, other.memory, trained):
        assert np.array_equal(memory.w[again[0, 1]], reference.w[new[0, 1]])
        assert all((x[again[0, 1]] == memory.start).all() for x in memory.slots.values())
        assert np.array_equal(memory.w[again[0, [0, 2]]], w[[0, 2]])
    assert not np.array_equal(w[1], np.zeros(1))
    assert all((x[again[0, 0]] != memory.start).any() for x in table.memory[0].slots.values())


@pytest.mark.one_case
@pytest.mark.parametrize("backend", ["numba", "tensorflow"])
@pytest.mark.parametrize("clip", ["cowclip", "none", "column"])
def test_absent_ids_that_are_zeros_stay_zeros(tf, backend, clip):
    """Also when batches get their rows ahead of the steps; the other rows train as ever."""
    found = {}
    for absent in ("zeros", "trained"):
        model, optimizer = growing(), cowclip(backend=backend, clip=clip)
        rules = {"b": FieldRules(admit=2)}
        table = growing_table(model, optimizer, fields=rules, absent=absent)
        step = trainer(tf, model, optimizer)
        ids = np.array([[1, 2, 3], [1, 4, 3]])
        x, label = np.ones([2, 1], np.float32), np.ones([2, 1], np.float32)
        ahead = [table.admit(ids, 0), table.admit(ids + 10, 1), table.admit(ids + 20, 2)]
        assert ahead[0][:, 1].tolist() == [1, 1]
        first = [memory.w[: table.num_fields].copy() for memory in table.memory]
        for rows in ahead:
            p, _ = step(rows, x, label)
        found[absent] = p
        for memory, w in zip(table.memory, first):
            same = [np.array_equal(memory.w[:3], w)]
            same += [not x[:3].any() for x in memory.slots.values()]
            assert same == [absent == "zeros"] * 3
            assert not w.any() or absent == "trained"
            assert memory.slots["m"][ahead[0][:, [0, 2]]].all()  # the other rows were trained
    assert not np.array_equal(*found.values())


def test_rows_of_a_state_that_were_trained_become_zeros(tf):
    model, other, optimizer = growing(), growing(), cowclip()
    table = growing_table(model, optimizer, fields={"b": FieldRules(admit=9)})
    step = trainer(tf, model, optimizer)
    step(table.admit(np.array([[1, 2, 3]]), 0), np.ones([1, 1], np.float32), np.ones([1, 1]))
    zeros = growing_table(other, cowclip(), fields={"b": FieldRules(admit=9)}, absent="zeros")
    zeros.restore(table.state())
    for memory in zeros.memory:
        assert not any(x[:3].any() for x in memory.used(3).values())


def test_the_two_tables_of_a_model_have_seeds_of_their_own():
    table = growing_table(growing(), cowclip())
    assert [memory.seed for memory in table.memory] == [3, 4]
    assert [memory.std for memory in table.memory] == [0.1, 0.0]


def peak():
    """The most memory that this process has had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def steps_of_all_kinds(tf, model, optimizer, table):
    """Steps and predictions, with a graph and without."""
    step = trainer(tf, model, optimizer)
    for now, (ids, x, label) in enumerate(batches(3)):
        rows = table.admit(raw(ids), now)
        step(rows, x, label)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(batch_of(rows), training=True))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        model.predict_on_batch(batch_of(rows))


@pytest.mark.one_case
@pytest.mark.parametrize("backend", ["numba", "tensorflow"])
def test_memory_is_reserved_and_not_resident(tf, backend):
    """4 GiB in all, of which few are taken, and steps never copy a table of 1 GiB."""
    small, optimizer = growing(), cowclip(backend=backend)
    steps_of_all_kinds(tf, small, optimizer, growing_table(small, optimizer))
    start = peak()
    model, optimizer = growing(capacity=2**32 // (4 * 3 * 5)), cowclip(backend=backend)
    table = growing_table(model, optimizer)
    table.admit(np.zeros([1, len(FIELDS)], int), 0)
    made = peak()
    steps_of_all_kinds(tf, model, optimizer, table)
    assert made - start < 700 and peak() - made < 200
