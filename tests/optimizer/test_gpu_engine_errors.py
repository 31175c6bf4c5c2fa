"""The operations of a GPU on the CPU: refused steps, and what else stops them."""

import subprocess
import sys

import numpy as np
import pytest
from emulated_cupy import COMPILER, another_order
from two_tables import TwoTables, assert_close, batches

import cowclip_merlin as cc
from cowclip_merlin.kernels import RowSettings
from cowclip_merlin.optimizer.row_updates import gpu_ops

pytestmark = [pytest.mark.system, pytest.mark.skipif(COMPILER is None, reason="no g++ on PATH")]


def test_the_next_step_of_a_graph_tells_of_every_table(tf, emulated):
    """A step tells the host of its own tables; the host asks the device for the rest."""
    tables = [tf.Variable(tf.ones([9, 2]), name=x) for x in ("embeddings", "other")]
    opt = cc.CowClip(update="exact", backend="cupy", embeddings=tables)

    @tf.function
    def step(ids, shift):
        for table in tables:
            opt.catch_up(table, ids + (shift if table is tables[1] else 0))
        g = tf.IndexedSlices(tf.ones([1, 2]), ids, tf.constant([9, 2]))
        opt.apply_gradients([(g, tables[0])])

    ids = tf.constant([1])
    step(ids, 0)
    step(ids, 8)
    with pytest.raises(tf.errors.InvalidArgumentError, match="id 9 is outside table 'other:0'"):
        step(ids, 0)


@pytest.mark.parametrize("given", [{}, {"rowwise": True, "update": "dense"}])
def test_a_step_is_refused_in_any_order(tf, emulated, given):
    model = TwoTables(tf, "cupy", **given).train(batches((9,)))
    model.opt.flush()
    before = model.state
    with another_order(3), pytest.raises(tf.errors.InvalidArgumentError, match="is not finite"):
        model.train([BAD])
        model.opt.flush()
    for x, y in zip(before, model.state, strict=True):
        np.testing.assert_array_equal(x, y)


BAD = (np.array([5, 12, 6]), np.full((3, 10), np.nan, "f"))


def train_with_a_refused_step(tf, model, before, after):
    model.train(before)
    with pytest.raises(tf.errors.InvalidArgumentError, match="is not finite"):
        model.train([BAD])
        model.opt.flush()
    return model.train(after)


@pytest.mark.parametrize("graph", [True, False])
def test_a_step_refused_at_a_full_history_keeps_missed_steps(tf, emulated, monkeypatch, graph):
    """The refused step begins a new history; rows must have taken the steps of the old one."""
    monkeypatch.setattr("cowclip_merlin.optimizer.row_updates.engine.HISTORY", 4)
    given = list(batches((12,) * 4))
    plain = TwoTables(tf, "cupy", graph=graph).train(given)
    ours = train_with_a_refused_step(tf, TwoTables(tf, "cupy", graph=graph), given, ())
    for model in (plain, ours):
        model.opt.flush()
    for x, y in zip(plain.state, ours.state, strict=True):
        np.testing.assert_array_equal(x, y)


def test_rows_that_missed_a_refused_step_alone_are_not_stale(tf, emulated, recwarn):
    table = tf.Variable(tf.ones([9, 2]), name="embeddings")
    opt = cc.CowClip(update="exact", backend="cupy")

    @tf.function(input_signature=[tf.TensorSpec([1, 2])])
    def step(g):
        opt.apply_gradients([(tf.IndexedSlices(g, tf.constant([1]), tf.constant([9, 2])), table)])

    step(tf.fill([1, 2], np.nan))
    with pytest.raises(tf.errors.InvalidArgumentError, match="is not finite"):
        opt.flush()
    step(tf.ones([1, 2]))
    opt.flush()
    assert (table.numpy()[1] != 1).all()
    assert not [w for w in recwarn if "brought up to date" in str(w.message)]


def test_a_checkpoint_after_a_refused_step_is_read_by_every_backend(tf, emulated, tmp_path):
    """Its history has the mark of that step."""
    ours = TwoTables(tf, "cupy")
    train_with_a_refused_step(tf, ours, batches((9, 9)), batches((5,), seed=2))
    file = tf.train.Checkpoint(opt=ours.opt, a=ours.table, b=ours.wide).save(str(tmp_path / "a"))
    ours.opt.flush()
    for backend in ("numba", "tensorflow"):
        other = TwoTables(tf, backend)
        other.opt.register_tables([other.table, other.wide])
        checkpoint = tf.train.Checkpoint(opt=other.opt, a=other.table, b=other.wide)
        checkpoint.restore(file)
        other.opt.flush()
        assert_close(ours.state, other.state)


@pytest.mark.parametrize("steps", [1, 2, 6])
def test_a_checkpoint_of_the_cpu_with_a_long_history_goes_on(
    tf, emulated, tmp_path, monkeypatch, steps
):
    """A GPU's history of this size has room for two steps; more are replayed and forgotten."""
    monkeypatch.setattr("cowclip_merlin.optimizer.row_updates.engine.HISTORY", 8)
    theirs, ours = TwoTables(tf, "numba"), TwoTables(tf, "cupy")
    theirs.train(batches((9,) * steps))
    file = tf.train.Checkpoint(opt=theirs.opt, a=theirs.table, b=theirs.wide)
    file = file.save(str(tmp_path / "a"))
    ours.opt.register_tables([ours.table, ours.wide])
    tf.train.Checkpoint(opt=ours.opt, a=ours.table, b=ours.wide).restore(file)
    for model in (theirs, ours):
        model.train(batches((5, 5), seed=2)).opt.flush()
    assert_close(theirs.state, ours.state)


def test_a_graph_of_another_process_is_refused(tf, emulated):
    status = tf.Variable(tf.zeros([4], tf.int64))
    with pytest.raises(tf.errors.FailedPreconditionError, match="table number 123456 is not"):
        gpu_ops.operations().module.cow_clip_flush(
            counts=[], variables=[status.handle], tables=[123456], wait=True
        )


def test_a_table_without_a_gpu_is_refused(tf, emulated):
    """Kernels of a device, but there is no driver, or the operation runs on the CPU."""
    loaded = gpu_ops.Loaded((0,) * len(gpu_ops.FUNCTIONS), blocks=2)
    owner = gpu_ops.operations().new_owner()
    record = gpu_ops.record_of(4, 2, RowSettings(), loaded, owner=owner, slot=0)
    number = gpu_ops.operations().add_table(record, lambda row, what: "")
    status = tf.Variable(tf.zeros([4], tf.int64))
    with pytest.raises(tf.errors.FailedPreconditionError, match="the row kernels need "):
        gpu_ops.operations().module.cow_clip_flush(
            counts=[], variables=[status.handle], tables=[number], wait=True
        )


NO_MEMORY = """
import resource
from pathlib import Path
from cowclip_merlin import compat
from cowclip_merlin.kernels import RowSettings
from cowclip_merlin.optimizer.row_updates import gpu_ops

tf = compat.tensorflow()
operations = gpu_ops.operations()
loaded = gpu_ops.Loaded((0,) * len(gpu_ops.FUNCTIONS), blocks=1, host=True)
record = gpu_ops.record_of(4, 2, RowSettings(), loaded, owner=operations.new_owner(), slot=0)
number = operations.add_table(record, lambda row, what: "")

def flush(size):
    status = tf.Variable(tf.zeros([size], tf.int64))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = resource.getrlimit(resource.RLIMIT_AS)
    if size > 4:  # less than the copy of the status needs
        resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (8 << 20), limit[1]))
    try:
        operations.module.cow_clip_flush(
            counts=[], variables=[status.handle], tables=[number], wait=True
        )
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limit)

with tf.device("CPU"):
    flush(4)
    try:
        flush(1 << 23)
    except tf.errors.ResourceExhaustedError as error:
        print(error.message)
"""


@pytest.mark.thorough
def test_no_memory_for_the_status_is_an_error(row_ops_folder):
    done = subprocess.run([sys.executable, "-c", NO_MEMORY], capture_output=True, text=True)
    assert "cannot allocate 67108864 bytes" in done.stdout, done.stderr
