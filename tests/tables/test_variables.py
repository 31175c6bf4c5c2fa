"""The memory of TensorFlow's variables: what NumPy writes TensorFlow reads, and the other way."""

import numpy as np
import pytest

import cowclip_merlin as cc
from cowclip_merlin.errors import InputError
from cowclip_merlin.tables import FieldRules, GrowingTable, variables
from cowclip_merlin.tables.variables import tf


def resident():
    """Memory of this process in MiB."""
    with open("/proc/self/statm", encoding="utf-8") as file:
        return int(file.read().split()[1]) * 4096 / 2**20


INNER = {"adam": lambda: "adam", "rowwise": lambda: cc.RowWiseAdagrad(0.1)}
SLOTS = {"adam": ("m", "v"), "rowwise": ("accumulator",)}


def cowclip(kind="adam"):
    return cc.CowClip(INNER[kind](), update="lazy", backend="numba", l2=1e-4)


def made(capacity, d=4, kind="adam"):
    table = tf.Variable(lambda: variables.reserve([capacity, d]), name="embeddings")
    optimizer = cowclip(kind)
    inner = optimizer.embedding_optimizer
    variables.create_slots(inner, table, SLOTS[kind])
    slots = {name: inner.get_slot(table, name) for name in SLOTS[kind]}
    start = 0.1 if kind == "rowwise" else 0.0
    return table, optimizer, variables.row_memory(table, slots, start=start, std=0.1, seed=1)


def step(optimizer, table, rows, g):
    optimizer.apply_gradients([(tf.IndexedSlices(g, rows, table.shape), table)])


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("kind", INNER)
def test_steps_of_tensorflow_and_writes_of_numpy_meet(kind, graph):
    """A reserved table and an ordinary one, with the same rows and gradients."""
    table, optimizer, memory = made(50, kind=kind)
    grown = GrowingTable([FieldRules()], memory=[memory], capacity=50)
    ordinary, other = tf.Variable(tf.zeros([50, 4])), cowclip(kind)
    train, train_other = [tf.function(step) if graph else step for _ in range(2)]
    for batch in range(4):
        before = grown.num_rows
        rows = grown.admit(np.arange(batch * 5, batch * 5 + 8)[:, None], batch)[:, 0]
        new = rows[rows > before]
        assert len(new) == (5 if batch else 8)
        ordinary.scatter_update(tf.IndexedSlices(memory.w[new], new))
        g = tf.random.stateless_normal([8, 4], [batch, 1])
        train(optimizer, table, tf.constant(rows), g)
        train_other(other, ordinary, tf.constant(rows), g)
        assert np.array_equal(memory.w[rows], ordinary.numpy()[rows])
        assert np.array_equal(tf.gather(table, rows).numpy(), memory.w[rows])
    inner, theirs = optimizer.embedding_optimizer, other.embedding_optimizer
    for name, x in memory.slots.items():
        assert np.array_equal(x[rows], theirs.get_slot(ordinary, name).numpy()[rows])
        assert np.ptp(x[rows]) > 0
    slots = [(inner.get_slot(table, name), memory.slots[name]) for name in SLOTS[kind]]
    for variable, x in ((table, memory.w), *slots):
        assert variables.memory_of(variable).ctypes.data == x.ctypes.data


def test_a_reserved_table_takes_memory_row_by_row():
    """1 GiB reserved; reads, steps and writes of some rows take a few MiB."""
    made(50)
    before = resident()
    table, optimizer, memory = made(1 << 23, 10)
    grown = GrowingTable([FieldRules()] * 2, memory=[memory], capacity=1 << 23)
    rows = grown.admit(np.arange(20_000).reshape(-1, 2), 0)
    train = tf.function(step)
    for _ in range(2):
        train(optimizer, table, tf.constant(rows[:, 0]), tf.gather(table, rows[:, 0]))
    assert resident() - before < 150
    assert not np.array_equal(memory.slots["m"][rows[0, 0]], np.zeros(10))


def test_more_than_the_system_gives_is_one_line():
    with pytest.raises(InputError, match=r"8,192.0 GiB for .* 2,147,483,000"):
        tf.Variable(lambda: variables.reserve([2_147_483_000, 1024]))
    with pytest.raises(InputError, match="capacity is 2,147,483,648; "):
        variables.reserve([1 << 31, 1])


def test_no_optimizer_no_moments():
    table = tf.Variable(lambda: variables.reserve([9, 2]))
    memory = variables.row_memory(table, std=0.5, seed=2)
    GrowingTable([FieldRules()], memory=[memory], capacity=9).admit(np.array([[3]]), 0)
    assert not memory.slots and list(memory.used(2)) == ["w"]
    assert np.array_equal(tf.gather(table, [0, 1]).numpy(), memory.w[:2])
