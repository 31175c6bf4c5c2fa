"""The operations of a GPU on the CPU: real TensorFlow, emulated kernels, no stream to wait for."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cowclip_merlin as cc

sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))
from emulated_cupy import COMPILER, operation_kernels

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no g++ on PATH")
ROWS = 40


@pytest.fixture(scope="module")
def folder(make_once):
    from cowclip_merlin.optimizer.row_updates import gpu_ops

    make_once("gpu_ops", lambda folder: gpu_ops.build())  # workers wait for the one that builds
    return make_once("emulated", lambda folder: None)  # filled by what needs a kernel


@pytest.fixture
def emulated(tf, monkeypatch, folder):
    """`backend="cupy"` with the operations' own code and the emulated kernels."""
    from cowclip_merlin.optimizer.row_updates import gpu_ops, variable_memory

    monkeypatch.setattr(gpu_ops, "load_kernels", operation_kernels(folder))
    monkeypatch.setattr(gpu_ops, "require_cupy", lambda: None)
    monkeypatch.setattr(variable_memory, "refuse_elsewhere", lambda *_: None)
    with tf.device("CPU"):
        yield


class Model:
    """Two tables that are looked up at the same ids, and their optimizer."""

    def __init__(self, tf, backend, *, dtype="float32", graph=True, index="int64", **settings):
        rng = np.random.default_rng(0)
        self.tf, self.dtype, self.index = tf, dtype, index
        start = rng.normal(0, 1e-2, (ROWS, 10)).astype("f")
        self.table = tf.Variable(start, name="embeddings")
        self.wide = tf.Variable(np.zeros((ROWS, 1), "f"), name="wide_embeddings")
        adam = tf.keras.optimizers.legacy.Adam(1e-3)
        settings = {"l2": 1e-2, "update": "exact"} | settings
        self.opt = cc.CowClip(adam, backend=backend, **settings)
        signature = [tf.TensorSpec([None], index), tf.TensorSpec([None, 10], dtype)]
        self.step = tf.function(self._step, input_signature=signature) if graph else self._step

    def _step(self, ids, g):
        tf = self.tf
        self.opt.catch_up([self.table, self.wide], ids)
        self.opt.apply_gradients(
            [
                (tf.IndexedSlices(g, ids, tf.constant([ROWS, 10])), self.table),
                (tf.IndexedSlices(g[:, :1], ids, tf.constant([ROWS, 1])), self.wide),
            ]
        )

    def train(self, batches):
        for ids, g in batches:
            tf = self.tf
            self.step(tf.constant(ids.astype(self.index)), tf.cast(tf.constant(g), self.dtype))
        return self

    @property
    def state(self):
        adam = self.opt.embedding_optimizer
        slots = [adam.get_slot(x, n) for x in (self.table, self.wide) for n in ("m", "v")]
        return [x.numpy() for x in (self.table, self.wide, *slots)]


def batches(sizes, seed=1):
    rng = np.random.default_rng(seed)
    for n in sizes:
        ids = np.minimum(rng.pareto(0.5, n), ROWS - 1).astype(np.int64)
        yield ids, rng.normal(0, 0.1, (n, 10)).astype("f")


def assert_close(a, b):
    for x, y in zip(a, b, strict=True):
        assert np.abs(x - y).max() <= 2e-6 * np.abs(x).max() + 1e-12


SIZES = (12,) * 4 + (0, 1) + (300,) + (12,) * 2  # 300: an id that is summed in pieces


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
    ],
)
def test_equal_to_numba(tf, emulated, given):
    ours = Model(tf, "cupy", **given).train(batches(SIZES))
    theirs = Model(tf, "numba", **given).train(batches(SIZES))
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


@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("update", ["exact", "lazy"])
@pytest.mark.parametrize(
    "ids, bad, said",
    [
        ([5, 12, 6], np.nan, "the gradient of id 2 of field 'item' is not finite"),
        ([5, 12, 6], np.inf, "the gradient of id 2 of field 'item' is not finite"),
        ([5, ROWS, 6], 1.0, f"id {ROWS} is outside table 'embeddings:0', which has {ROWS} rows"),
        ([5, -1, 6], 1.0, "id -1 is outside table 'embeddings:0'"),
    ],
)
def test_a_refused_step_writes_nothing_and_is_told(tf, emulated, graph, update, ids, bad, said):
    fields = {"user": 10, "item": ROWS - 10}
    model = Model(tf, "cupy", update=update, graph=graph, fields=fields).train(batches((9,)))
    model.opt.flush()
    before = model.state
    g = np.ones((3, 10), "f")
    g[1] = bad
    with pytest.raises(tf.errors.InvalidArgumentError, match=said):
        model.train([(np.array(ids), g), *batches((9,))])
        model.opt.flush()
    model.opt.flush()  # the error came instead of the first one
    for x, y in zip(before, model.state, strict=True):
        np.testing.assert_array_equal(x, y)
    model.train(batches((9,)))  # told once; the next steps are made
    model.opt.flush()
    assert (model.state[0] != before[0]).any()


def test_a_full_history_brings_all_rows_up_to_date(tf, emulated, monkeypatch):
    whole = Model(tf, "cupy").train(batches((12,) * 9))
    monkeypatch.setattr("cowclip_merlin.optimizer.row_updates.engine.HISTORY", 4)
    short = Model(tf, "cupy").train(batches((12,) * 9))
    for model in (whole, short):
        model.opt.flush()
    for x, y in zip(whole.state, short.state, strict=True):
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
    plain = Model(tf, "cupy", graph=graph).train(given)
    ours = train_with_a_refused_step(tf, Model(tf, "cupy", graph=graph), given, ())
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
    ours = Model(tf, "cupy")
    train_with_a_refused_step(tf, ours, batches((9, 9)), batches((5,), seed=2))
    file = tf.train.Checkpoint(opt=ours.opt, a=ours.table, b=ours.wide).save(str(tmp_path / "a"))
    ours.opt.flush()
    for backend in ("numba", "tensorflow"):
        other = Model(tf, backend)
        other.opt.register_tables([other.table, other.wide])
        checkpoint = tf.train.Checkpoint(opt=other.opt, a=other.table, b=other.wide)
        checkpoint.restore(file)
        other.opt.flush()
        assert_close(ours.state, other.state)


def test_rows_that_were_stale_are_told(tf, emulated):
    table = tf.Variable(tf.ones([9, 2]), name="embeddings")
    opt = cc.CowClip(update="exact", backend="cupy")
    g = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), tf.constant([9, 2]))
    other = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([2]), tf.constant([9, 2]))
    with pytest.warns(UserWarning, match="'embeddings:0' were not brought up to date"):
        for each in (g, other, g):
            opt.apply_gradients([(each, table)])


def test_variables_that_share_memory_part(tf, emulated):
    model = Model(tf, "cupy", update="lazy")
    copy = tf.Variable(tf.zeros([ROWS, 10]))
    copy.assign(model.table)
    before = copy.numpy()
    model.train(batches((12,)))
    np.testing.assert_array_equal(copy.numpy(), before)
    assert (model.table.numpy() != before).any()


def test_a_graph_of_another_process_is_refused(tf, emulated):
    from cowclip_merlin.optimizer.row_updates import gpu_ops

    status = tf.Variable(tf.zeros([4], tf.int64))
    with pytest.raises(tf.errors.FailedPreconditionError, match="table number 123456 is not"):
        gpu_ops.operations().module.cow_clip_flush(
            counts=[], variables=[status.handle], tables=[123456], wait=True
        )


def test_a_table_without_a_gpu_is_refused(tf, emulated):
    """Kernels of a device, but there is no driver, or the operation runs on the CPU."""
    from cowclip_merlin.kernels import RowSettings
    from cowclip_merlin.optimizer.row_updates import gpu_ops

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


def test_no_memory_for_the_status_is_an_error(folder):
    done = subprocess.run([sys.executable, "-c", NO_MEMORY], capture_output=True, text=True)
    assert "cannot allocate 67108864 bytes of pinned host memory" in done.stdout, done.stderr


REPLICAS = """
import sys
from pathlib import Path
from unittest import mock
import cowclip_merlin as cc
from cowclip_merlin import compat

sys.path[:0] = [sys.argv[1]]
from emulated_cupy import operation_kernels
from cowclip_merlin.optimizer.row_updates import gpu_ops, variable_memory

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


def test_every_replica_has_the_kernels_of_its_device(folder, two_devices):
    kernels = str(Path(__file__).parents[1] / "kernels")
    printed = two_devices.run(REPLICAS, kernels, str(folder))
    assert printed.endswith("loaded on [0, 1] owners 1\n"), printed
