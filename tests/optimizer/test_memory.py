"""Kernels write into the memory of TensorFlow's variables: into all of it, and nothing else."""

import platform
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import cowclip_merlin as cc
from cowclip_merlin.tables import variable_memory
from cowclip_merlin.tables.variable_memory import (
    memory_tensor,
    on_host,
    refuse_elsewhere,
)

pytestmark = pytest.mark.filterwarnings("ignore:update=.exact.:UserWarning")


@pytest.fixture
def on_cpu(tf):
    """Where NumPy sees the memory of a variable."""
    with tf.device("CPU"):
        yield


def address(tensor):
    return np.asarray(memoryview(tensor)).ctypes.data


def memory_of(tf, variable):
    return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)


def add_one(tf, variable):
    def run(memory):
        memory += 1
        return [np.zeros(0, np.float32)]

    on_host(run, [], [variable], [tf.float32])


@pytest.mark.parametrize("rows", [1, 2, 3, 1000, 100_000])
@pytest.mark.parametrize("graph", [False, True])
def test_what_is_written_stays(tf, on_cpu, rows, graph):
    variable = tf.Variable(tf.zeros([rows, 3]))

    def step():
        before = tf.gather(variable, [0])
        add_one(tf, variable)
        return before, tf.gather(variable, [rows - 1])

    step = tf.function(step) if graph else step
    for i in range(4):
        before, after = step()
        assert before.numpy().tolist() == [[i] * 3]
        assert after.numpy().tolist() == [[i + 1.0] * 3]
    assert (variable.numpy() == 4).all()


@pytest.mark.parametrize("answers", [False, True])
def test_the_table_is_not_copied(tf, on_cpu, answers):
    """Looked up, evaluated, assigned: the memory that kernels see is the variable's own."""
    variable, seen = tf.Variable(tf.random.normal([50_000, 10])), []

    def run(memory):
        seen.append(memory.ctypes.data)
        return [np.zeros(0, np.float32)]

    @tf.function
    def step():
        found = tf.gather(variable, [3])
        on_host(run, [], [variable], [tf.float32])
        return found if answers else None

    for _ in range(4):
        step()
    assert len(set(seen)) == 1
    assert address(memory_tensor(variable)) == seen[0]


def test_other_tensors_keep_their_values(tf, on_cpu):
    start = tf.ones([50_000, 4])
    one, two = tf.Variable(start), tf.Variable(start)
    add_one(tf, one)
    two.assign(start)
    add_one(tf, two)
    add_one(tf, two)
    assert [x.numpy().max() for x in (start, one, two)] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("graph", [False, True])
def test_variables_that_share_memory_part(tf, on_cpu, graph):
    """The step gives a result: then TensorFlow leaves out reads of which nobody uses the result."""
    one, two = tf.Variable(tf.zeros([1000, 4])), tf.Variable(tf.zeros([1000, 4]))
    two.assign(one)
    assert address(memory_of(tf, one)) == address(memory_of(tf, two))

    def step(x):
        add_one(tf, one)
        return tf.reduce_sum(x)

    step = tf.function(step) if graph else step
    for _ in range(3):
        step(tf.ones([3]))
    assert (one.numpy() == 3).all() and not two.numpy().any()


@pytest.mark.parametrize("update", ["exact", "lazy", "dense"])
def test_what_was_assigned_from_a_table_or_its_slots_stays(tf, on_cpu, update):
    backend = "numba" if update == "dense" else "auto"
    table = tf.Variable(tf.ones([50, 4]), name="embeddings")
    optimizer = cc.CowClip(update=update, backend=backend)

    @tf.function
    def step(ids):
        slices = tf.IndexedSlices(tf.ones([2, 4]), ids, tf.constant([50, 4]))
        optimizer.apply_gradients([(slices, table)])
        return tf.reduce_sum(ids)

    step(tf.constant([1, 2]))
    slots = [optimizer.embedding_optimizer.get_slot(table, name) for name in ("m", "v")]
    copies = [tf.Variable(tf.zeros([50, 4])) for _ in range(3)]
    for copy, variable in zip(copies, (table, *slots), strict=True):
        copy.assign(variable)
    before = [copy.numpy().copy() for copy in copies]
    step(tf.constant([2, 3]))
    for copy, kept, variable in zip(copies, before, (table, *slots), strict=True):
        np.testing.assert_array_equal(copy.numpy(), kept)
        assert (variable.numpy() != kept).any()


def huge_around(where):
    """Kilobytes in pages of 2 MB of the part of memory that an address is in."""
    inside = False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        head = line.split()[0]
        if not head.endswith(":"):  # a part begins
            first, _, end = head.partition("-")
            inside = int(first, 16) <= where < int(end, 16)
        elif inside and head == "AnonHugePages:":
            return int(line.split()[1])
    return 0


def are_large_pages_left(tables):
    """Whether Linux holds as many arrays of NumPy in large pages, which are free again then."""
    arrays = [np.ones(32 << 20, np.uint8) for _ in range(tables)]
    variable_memory.hold_in_large_pages(*arrays)
    return all(huge_around(x.ctypes.data + (16 << 20)) > 25 * 1024 for x in arrays)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux is asked")
@pytest.mark.parametrize("update", ["exact", "lazy"])
def test_large_tables_are_held_in_large_pages(tf, on_cpu, monkeypatch, update):
    kernel = tuple(map(int, platform.release().split(".")[:2]))
    enabled = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if kernel < (6, 1) or not enabled.exists() or "[never]" in enabled.read_text(encoding="utf-8"):
        pytest.skip("needs large pages, and MADV_COLLAPSE of Linux 6.1")
    monkeypatch.setattr(variable_memory, "LEAST", 8 << 20)
    if not are_large_pages_left(3):
        pytest.skip("Linux has no large pages left, as where memory is in small pieces")
    start = np.random.default_rng(1).normal(size=(1 << 20, 8)).astype("f")
    table = tf.Variable(start, name="embeddings")
    cowclip = cc.CowClip(update=update, backend="numba", l2=0.0)
    slices = tf.IndexedSlices(tf.ones([1, 8]), tf.constant([5]), table.shape)
    cowclip.apply_gradients([(slices, table)])
    adam = cowclip.embedding_optimizer
    for variable in (table, adam.get_slot(table, "m"), adam.get_slot(table, "v")):
        middle = address(memory_tensor(variable)) + (16 << 20)
        assert huge_around(middle) > 25 * 1024  # most of 32 MB
    changed = np.flatnonzero((table.numpy() != start).any(axis=1))
    assert changed.tolist() == [5]


def test_a_variable_that_is_assigned_between_steps(tf, on_cpu):
    variable = tf.Variable(tf.zeros([1000, 2]))
    step = tf.function(lambda: add_one(tf, variable))
    step()
    variable.assign(tf.fill([1000, 2], 5.0))
    step()
    assert (variable.numpy() == 6).all()


@pytest.mark.parametrize("backend, device", [("numba", "GPU:0"), ("cupy", "CPU:0")])
def test_a_table_in_other_memory_is_refused(backend, device):
    """numba would be given a copy of a table on a GPU, and its writes would be lost."""
    table = SimpleNamespace(name="t:0", device=f"/job:localhost/replica:0/task:0/device:{device}")
    with pytest.raises(cc.InputError, match=f"table 't:0' is in .*{device}, "):
        refuse_elsewhere(table, backend)


def test_where_a_table_lies_is_looked_at(tf, monkeypatch):
    asked = []
    monkeypatch.setattr(variable_memory, "refuse_elsewhere", lambda *given: asked.append(given))
    with tf.device("CPU"):
        table = tf.Variable(tf.ones([3, 2]), name="embeddings")
    for backend in ("numba", "tensorflow"):
        cc.CowClip(update="exact", backend=backend).catch_up(table, [1])
    assert [(id(t), backend) for t, backend in asked] == [(id(table), "numba")]


def test_cupy_that_is_not_installed_is_named(tf):
    if find_spec("cupy"):
        pytest.skip("CuPy is installed")
    with pytest.raises(cc.InputError, match=r"need CuPy, .*: pip install"):
        cc.CowClip(update="exact", backend="cupy")
