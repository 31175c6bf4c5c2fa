"""The operations of a GPU on the CPU: real TensorFlow, emulated kernels, no stream to wait for."""

import threading
from pathlib import Path

import numpy as np
import pytest
from emulated_cupy import COMPILER, another_order, launches
from two_tables import ROWS, TwoTables, assert_close, batches

import cowclip_merlin as cc
from cowclip_merlin.kernels import RowSettings
from cowclip_merlin.optimizer.row_updates import gpu_ops

pytestmark = [pytest.mark.system, pytest.mark.skipif(COMPILER is None, reason="no g++ on PATH")]
SIZES = (12,) * 4 + (0, 1) + (300,) + (12,) * 2  # 300: an id that is summed in pieces


@pytest.mark.one_case
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"update": "lazy"},
        {"update": "dense"},
        {"clip": "column", "update": "lazy", "bound": 1e-2},
        {"clip": "none"},
        {"dtype": "bfloat16"},
        {"dtype": "float16"},
        {"dtype": "float64"},
        {"index": "int32"},
        {"graph": False},
        {"adam": {"beta_1": 0.7, "beta_2": 0.872, "epsilon": 1e-8}},
        {"adam": {"beta_1": 0.0, "beta_2": 0.5}, "update": "dense"},
        {"rowwise": True, "update": "lazy", "dtype": "bfloat16"},
        {"rowwise": False, "update": "lazy", "dtype": "float16", "index": "int32"},
        {"rowwise": True, "update": "dense"},
    ],
)
def test_equal_to_the_cpu(tf, emulated, given):
    """To numba; it has no Adagrad of all rows, which is TensorFlow's."""
    other = "tensorflow" if "rowwise" in given and given["update"] == "dense" else "numba"
    ours = TwoTables(tf, "cupy", **given).train(batches(SIZES))
    theirs = TwoTables(tf, other, **given).train(batches(SIZES))
    for model in (ours, theirs):
        model.opt.flush()
    assert_close(theirs.state, ours.state)
    assert ours.opt.clipped_share.numpy() == pytest.approx(theirs.opt.clipped_share.numpy())
    mean = theirs.opt.mean_clip_factor.numpy()
    assert ours.opt.mean_clip_factor.numpy() == pytest.approx(mean, rel=1e-6)


def test_ids_that_differ_between_tables_are_grouped_for_each(tf, emulated):
    """Tables share the groups of a batch only where they are given the same ids."""
    ends = []
    for backend in ("cupy", "numba"):
        tables = [tf.Variable(tf.ones([ROWS, 1]), name=f"{x}_embeddings") for x in "ab"]
        opt = cc.CowClip(update="lazy", backend=backend, l2=0.0)
        for first, second in (([1, 2, 2], [2, 1, 7]), ([3, 3, 3], [0, 1, 2])):
            g, shape = tf.constant([[1.0], [2.0], [4.0]]), tf.constant([ROWS, 1])
            ids = [tf.constant(first), tf.constant(second)]
            opt.apply_gradients([(tf.IndexedSlices(g, i, shape), t) for i, t in zip(ids, tables)])
        ends.append([t.numpy() for t in tables])
    assert_close(*ends)


def test_tables_with_the_same_ids_share_their_groups(tf, emulated):
    """As in a model with two tables for each field: all wide tables come after the others."""
    shapes = {"a": 10, "b": 10, "a_wide": 1, "b_wide": 1}
    tables = [tf.Variable(tf.ones([ROWS, d]), name=f"{x}_embeddings") for x, d in shapes.items()]
    opt = cc.CowClip(update="lazy", backend="cupy")
    ids = {"a": tf.constant([1, 2, 2]), "b": tf.constant([2, 1, 7])}
    before = launches("histogram") + launches("heads")
    opt.apply_gradients(
        [
            (tf.IndexedSlices(tf.ones([3, d]), ids[name[0]], tf.constant([ROWS, d])), table)
            for (name, d), table in zip(shapes.items(), tables, strict=True)
        ]
    )
    assert launches("histogram") + launches("heads") - before == 2 * 2
    assert all((table.numpy()[[1, 2, 7]][:2] != 1).all() for table in tables)


@pytest.mark.parametrize("rows, passes", [(500, 1), (513, 2), (300_000, 3)])
def test_many_ids_are_sorted_in_as_few_passes_as_possible(tf, emulated, rows, passes):
    ids = np.random.default_rng(rows).integers(0, rows, 9000)
    ids[:600] = rows - 1
    g = tf.IndexedSlices(tf.ones([9000, 1]) / 64, tf.constant(ids), tf.constant([rows, 1]))
    ends, before = [], launches("onesweep")
    for backend in ("cupy", "numba"):
        table = tf.Variable(tf.ones([rows, 1]), name="embeddings")
        cc.CowClip(update="lazy", backend=backend, l2=0.0).apply_gradients([(g, table)])
        ends.append([table.numpy()])
    assert launches("onesweep") - before == passes
    assert_close(*ends)


LAUNCHES = {
    "histogram": 1, "onesweep": 1, "heads": 1, "sum_groups": 1, "sum_queued": 1,
    "join_queued": 1, "step_groups": 1, "summarize": 1, "catch_up_rows": 1, "sweep_rows": 1,
}  # fmt: skip


@pytest.mark.parametrize("update", ["exact", "lazy"])
def test_how_often_a_step_of_two_tables_launches_each_kernel(tf, emulated, update):
    """Both tables share a group, and one launch sums, steps or replays for both."""
    model = TwoTables(tf, "cupy", update=update).train(batches((12,)))
    before = {name: launches(name) for name in LAUNCHES}
    model.train(batches((12,)))
    made = {name: launches(name) - count for name, count in before.items()}
    replays = {} if update == "exact" else {"catch_up_rows": 0, "sweep_rows": 0}
    assert made == LAUNCHES | replays


@pytest.mark.parametrize("seed", [0, 3])
def test_a_launch_serves_as_many_tables_as_it_has_room_for(tf, emulated, seed):
    """18 tables of several row lengths: two launches, and each table as if it were alone."""
    with another_order(seed):
        ends = [steps_of_many_tables(tf, backend) for backend in ("cupy", "numba")]
    assert_close(*ends)


def steps_of_many_tables(tf, backend):
    """Make three steps; returns the tables, of which some have rows longer than a warp."""
    lengths = [(1, 3, 40, 70)[i % 4] for i in range(18)]
    tables = [tf.Variable(tf.fill([9, d], 0.1), name=f"a{i}") for i, d in enumerate(lengths)]
    opt = cc.CowClip(update="exact", backend=backend, l2=1e-3, embeddings=tables)
    kernels = ("catch_up_rows", "sweep_rows", "sum_groups", "step_groups")
    before = [launches(name) for name in kernels]
    for ids in ([1, 2], [3, 3], [1, 8]):
        opt.catch_up(tables, tf.constant(ids))
        g = [tf.ones([2, d]) * (i + 1) for i, d in enumerate(lengths)]
        slices = [tf.IndexedSlices(x, tf.constant(ids), tf.shape(t)) for x, t in zip(g, tables)]
        opt.apply_gradients(list(zip(slices, tables)))
    made = [launches(name) - count for name, count in zip(kernels, before, strict=True)]
    assert made == ([6] * 4 if backend == "cupy" else [0] * 4)
    opt.flush()
    return [table.numpy() for table in tables]


def test_operations_lock_tables_in_any_order(tf, emulated):
    """Two operations that name the same tables in other orders must not wait for each other."""
    operations = TwoTables(tf, "cupy").train(batches((3,))).opt._engine.operations
    record = gpu_ops.record_of(
        4, 2, RowSettings(), gpu_ops.Loaded((0,) * len(gpu_ops.FUNCTIONS), blocks=1, host=True),
        owner=operations.new_owner(), slot=0,
    )  # fmt: skip
    number = operations.add_table(record, lambda row, what: "")
    status = tf.Variable(tf.zeros([4], tf.int64))
    handles = [tf.Variable(tf.zeros([1])) for _ in range(200)]

    def lock(variables):
        for _ in range(200):
            operations.module.cow_clip_flush(
                counts=[], variables=[*(x.handle for x in variables), status.handle],
                tables=[number], wait=False,
            )  # fmt: skip

    both = [
        threading.Thread(target=lock, args=[order], daemon=True)
        for order in (handles, handles[::-1])
    ]
    for each in both:
        each.start()
    for each in both:
        each.join(60)
    assert not any(each.is_alive() for each in both)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "given",
    [{}, {"update": "lazy", "dtype": "bfloat16"}, {"update": "dense", "rowwise": True}],
)
def test_the_same_bits_in_any_order_on_any_memory(tf, emulated, given, seed):
    """No kernel relies on the order of threads and blocks, or on memory that nobody has set."""
    ordered = TwoTables(tf, "cupy", **given).train(batches(SIZES))
    ordered.opt.flush()
    with another_order(seed):
        found = tf.raw_ops.Empty(shape=[4096], dtype=tf.uint8).numpy()
        assert (found != 0).all()
        shuffled = TwoTables(tf, "cupy", **given).train(batches(SIZES))
        shuffled.opt.flush()
    for x, y in zip(ordered.state, shuffled.state, strict=True):
        np.testing.assert_array_equal(x, y)


def test_variables_that_share_memory_part(tf, emulated):
    model = TwoTables(tf, "cupy", update="lazy")
    copy = tf.Variable(tf.zeros([ROWS, 10]))
    copy.assign(model.table)
    before = copy.numpy()
    model.train(batches((12,)))
    np.testing.assert_array_equal(copy.numpy(), before)
    assert (model.table.numpy() != before).any()


REPLICAS = """
import sys
from pathlib import Path
from unittest import mock
import cowclip_merlin as cc
from cowclip_merlin import compat

sys.path[:0] = [sys.argv[1]]
from emulated_cupy import operation_kernels
from cowclip_merlin.optimizer.row_updates import gpu_ops
from cowclip_merlin.tables import variable_memory

tf = compat.tensorflow()
load, loaded = operation_kernels(Path(sys.argv[2])), []
owners, new_owner = [], gpu_ops.Operations.new_owner
emulated = (
    (gpu_ops, "load_kernels", lambda device, *more: loaded.append(device) or load(device, *more)),
    (gpu_ops, "require_cupy", lambda *_: None),
    (variable_memory, "refuse_elsewhere", lambda *_: None),
    (
        gpu_ops.Operations,
        "new_owner",
        lambda self: owners.append(new_owner(self)) or owners[-1],
    ),
)
for where, name, function in emulated:
    mock.patch.object(where, name, function).start()
ids, g = tf.constant([1, 2, 2, 5]), tf.reshape(tf.range(8.0) / 8, [4, 2])

def train(strategy, backend):
    n = strategy.num_replicas_in_sync
    with strategy.scope():
        table = tf.Variable(tf.ones([9, 2]), name="embeddings")
        opt = cc.CowClip(update="exact", backend=backend, l2=1e-2)

    @tf.function
    def step(shift):
        def replica():
            i = tf.distribute.get_replica_context().replica_id_in_sync_group
            part = slice(i * (4 // n), (i + 1) * (4 // n))
            opt.catch_up(table, ids[part] + shift)
            slices = tf.IndexedSlices(g[part], ids[part] + shift, tf.constant([9, 2]))
            opt.apply_gradients([(slices, table)])
        strategy.run(replica)

    for shift in (0, 1, 3, 0):
        step(tf.constant(shift))
    opt.flush()
    return [x.numpy() for x in strategy.experimental_local_results(table)]

try:
    with tf.device("CPU:0"):
        (one,) = train(tf.distribute.get_strategy(), "numba")
    loaded.clear()
    for copy in train(two, "cupy"):
        assert abs(copy - one).max() <= 2e-6, copy - one
finally:
    mock.patch.stopall()
print("loaded on", sorted(set(loaded)), "owners", len(owners))
"""


def test_every_replica_has_the_kernels_of_its_device(row_ops_folder, two_devices):
    kernels = str(Path(__file__).parents[1] / "kernels")
    printed = two_devices.run(REPLICAS, kernels, str(row_ops_folder))
    assert printed.endswith("loaded on [0, 1] owners 1\n"), printed


@pytest.mark.parametrize("l2", [0.0, 1e-5])
def test_rows_that_miss_many_steps_are_swept_and_rest(tf, emulated, monkeypatch, l2):
    """Every step brings a seventh of the rows up to date; replays end early as on the CPU."""
    monkeypatch.setattr(gpu_ops, "SWEEP_STEPS", 7)
    ends = []
    for backend in ("cupy", "numba"):
        model = TwoTables(tf, backend, l2=l2).train(batches((12,) * 3 + (1,) * 150))
        if backend == "cupy":
            tables = model.opt.tables
            seen = [tables.of(table).state.last.numpy() for table in tables.with_state]
            assert all(153 - last.min() <= 7 for last in seen)
        model.opt.flush()
        ends.append(model.state)
    assert_close(*ends)
