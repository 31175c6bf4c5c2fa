"""A read of a whole batch and its step equal lookups, TensorFlow's layers, and steps on the CPU."""

from types import SimpleNamespace

import numpy as np
import pytest
from emulated_cupy import COMPILER, another_order, launches
from merlin.schema import ColumnSchema, Schema, Tags
from table_schemas import schema_of_tables
from two_tables import assert_close, inner_optimizer

import cowclip_merlin as cc
from cowclip_merlin.batch import Batch, Ids
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import ColumnArrays, DeviceData
from cowclip_merlin.models.hidden.layers import computing_in
from cowclip_merlin.optimizer.unique_rows import BatchRead, ReadForm
from cowclip_merlin.training.train_step import make_train_step

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no g++ on PATH")
ROWS, FIELDS, NUMBERS = 30, 5, 3


class Batches:
    """Trains two tables by a read of each batch, or by lookups; the loss is linear in what is read.

    Args:
        tf: TensorFlow.
        backend: of the optimizer.
        d: length of an embedding.
        wide: whether there are id weights.
        pairs: whether there are second-order terms.
        dtype: of the flat input.
        index: type of the ids.
        graph: whether the step is a graph.
        fields: columns of ids.
        rows: of the tables.
        **settings: of `CowClip`.
    """

    def __init__(
        self, tf, backend, *, d=10, wide=True, pairs=True, dtype="float32", index="int64",
        graph=True, rows=ROWS, fields=FIELDS, **settings,
    ):  # fmt: skip
        self.tf, self.pairs, self.dtype, self.index = tf, pairs, tf.as_dtype(dtype), index
        self.width = (fields * d + NUMBERS + 7) // 8 * 8
        rng = np.random.default_rng(0)
        w = [rng.normal(0, 1e-1, (rows, k)).astype("f") for k in ((d, 1) if wide else (d,))]
        self.tables = [tf.Variable(x, name=f"{i}_embeddings") for i, x in enumerate(w)]
        inner = inner_optimizer(tf, settings.pop("rowwise", None))
        settings = {"l2": 1e-2, "update": "exact", "embeddings": self.tables} | settings
        self.opt = cc.CowClip(inner, backend=backend, **settings)
        self.offsets = [2, *[0] * (fields - 2), 1][:fields]
        self.seen = []
        step = self.by_read if backend == "cupy" else self.by_lookup
        self.step = tf.function(step, autograph=False) if graph else step

    def by_read(self, ids, numbers, weights):
        read = self.opt.read_batch(
            self.tables, ids, numbers, ReadForm(self.offsets, self.width, self.dtype, self.pairs)
        )
        gradients = [x[:, : y.shape[1]] for x, y in zip(self.loss_gradients(weights), read.outputs)]
        pairs = read.pairs(tuple(gradients))
        self.opt.apply_gradients(pairs, experimental_aggregate_gradients=False)
        return read.outputs

    def by_lookup(self, ids, numbers, weights):
        tf = self.tf
        ids += tf.constant(self.offsets, ids.dtype)
        self.opt.catch_up(self.tables, ids)
        with tf.GradientTape() as tape:
            outputs = self.look_up(ids, numbers)
            parts = zip(outputs, self.loss_gradients(weights))
            loss = sum(tf.reduce_sum(tf.cast(x, "float32") * tf.cast(g, "float32"))
                       for x, g in parts if x is not None)  # fmt: skip
        gradients = tape.gradient(loss, self.tables)
        self.opt.apply_gradients(zip(gradients, self.tables))
        return [x for x in outputs if x is not None]

    def look_up(self, ids, numbers):
        tf, v = self.tf, self.tf.gather(self.tables[0], ids)
        flat = tf.concat([tf.reshape(v, [-1, v.shape[1] * v.shape[2]]), numbers], axis=1)
        flat = tf.pad(flat, [[0, 0], [0, self.width - flat.shape[1]]])
        first = second = None
        if len(self.tables) > 1:
            first = tf.reduce_sum(tf.gather(self.tables[1], ids), axis=1)
        if self.pairs:
            squares = tf.square(tf.reduce_sum(v, 1)) - tf.reduce_sum(tf.square(v), 1)
            second = 0.5 * tf.reduce_sum(squares, 1, keepdims=True)
        return tf.cast(flat, self.dtype), first, second

    def loss_gradients(self, weights):
        flat = self.tf.cast(weights[:, : self.width], self.dtype)
        return flat, weights[:, self.width : self.width + 1], weights[:, self.width + 1 :]

    def train(self, sizes, seed=1):
        tf, rng = self.tf, np.random.default_rng(seed)
        rows = self.tables[0].shape[0]
        for b in sizes:
            ids = np.minimum(rng.pareto(0.4, (b, len(self.offsets))), rows - 3).astype(self.index)
            numbers = rng.normal(0, 1, (b, NUMBERS)).astype("f")
            weights = rng.normal(0, 0.1, (b, self.width + 2)).astype("f")
            found = self.step(*map(tf.constant, (ids, numbers, weights)))
            self.seen += [tf.cast(x, "float32").numpy() for x in found if x.shape[1]]
        return self

    def state(self):
        inner, names = self.opt.embedding_optimizer, self.opt.row_slots
        self.opt.flush()
        slots = [inner.get_slot(x, n) for x in self.tables for n in names]
        return [x.numpy() for x in (*self.tables, *slots)]


@pytest.mark.one_case
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"update": "lazy"},
        {"update": "dense"},
        {"dtype": "bfloat16"},
        {"dtype": "bfloat16", "update": "lazy", "pairs": False},
        {"wide": False},
        {"wide": False, "pairs": False, "d": 3},
        {"pairs": False, "d": 1},
        {"d": 40},
        {"d": 33, "dtype": "bfloat16", "update": "lazy"},
        {"graph": False},
        {"index": "int32"},
        {"fields": 1, "d": 3},
        {"fields": 7},
        {"fields": 64, "d": 3, "wide": False},
        {"clip": "none"},
        {"rowwise": True, "update": "lazy"},
        {"rowwise": False, "update": "lazy", "d": 33, "dtype": "bfloat16"},
    ],
)
def test_equal_to_lookups_on_the_cpu(tf, where, given):
    """The largest batch has ids that are summed in pieces; one batch is empty."""
    sizes = (6, 6, 0, 1, 90, 6, 6)
    ours = Batches(tf, "cupy", **given).train(sizes)
    with tf.device("CPU"):
        theirs = Batches(tf, "numba", **given).train(sizes)
    for x, y in zip(theirs.seen, ours.seen, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-2 if "dtype" in given else 1e-5, atol=1e-5)
    assert_close(theirs.state(), ours.state())
    share = theirs.opt.clipped_share.numpy()
    assert ours.opt.clipped_share.numpy() == pytest.approx(share)


@pytest.mark.system
@pytest.mark.parametrize("given", [{}, {"update": "lazy", "dtype": "bfloat16", "d": 3}])
def test_the_same_bits_in_any_order_on_any_memory(tf, emulated, given):
    ordered = Batches(tf, "cupy", **given).train((6, 70, 6))
    with another_order(5):
        shuffled = Batches(tf, "cupy", **given).train((6, 70, 6))
    pairs = zip(ordered.seen + ordered.state(), shuffled.seen + shuffled.state(), strict=True)
    for x, y in pairs:
        np.testing.assert_array_equal(x, y)


LAUNCHES = {
    "histogram": 1, "onesweep": 1, "heads": 1, "fetch_rows": 1, "read_batch": 1, "sum_groups": 1,
    "sum_queued": 1, "join_queued": 1, "sweep_rows": 1, "step_groups": 1, "summarize": 1,
    "catch_up_rows": 0,
}  # fmt: skip


@pytest.mark.system
@pytest.mark.parametrize("update", ["exact", "lazy"])
def test_how_often_a_read_and_its_step_launch_each_kernel(tf, emulated, update):
    """Both tables share each launch, and the ids are grouped once."""
    model = Batches(tf, "cupy", update=update).train((6,))
    before = {name: launches(name) for name in LAUNCHES}
    model.train((6,))
    made = {name: launches(name) - count for name, count in before.items()}
    assert made == LAUNCHES | ({} if update == "exact" else {"fetch_rows": 0, "sweep_rows": 0})


@pytest.mark.system
def test_a_full_history_brings_all_rows_up_to_date(tf, emulated, monkeypatch):
    whole = Batches(tf, "cupy").train((6,) * 9).state()
    monkeypatch.setattr("cowclip_merlin.optimizer.row_updates.engine.HISTORY", 14)
    short = Batches(tf, "cupy").train((6,) * 9).state()
    for x, y in zip(whole, short, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("update", ["exact", "lazy"])
def test_a_refused_step_changes_no_table(tf, where, update):
    model = Batches(tf, "cupy", update=update).train((6, 6))
    before = model.state()
    ids, numbers = tf.zeros([2, FIELDS], tf.int64), tf.zeros([2, NUMBERS])
    model.step(ids, numbers, tf.fill([2, model.width + 2], np.nan))
    with pytest.raises(tf.errors.InvalidArgumentError, match="not finite"):
        model.opt.flush()
    for x, y in zip(before, model.state(), strict=True):
        np.testing.assert_array_equal(x, y)
    model.step(ids + ROWS, numbers, tf.zeros([2, model.width + 2]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="id 30 is outside table"):
        model.opt.flush()


MODELS = {
    "wide_and_deep": {},
    "deepfm": {},
    "dcn": {},
    "dcnv2": {},
    "deepfm, all": {"continuous": "all"},
    "dcn, all": {"continuous": "all"},
    "dcnv2, bfloat16": {"precision": "bfloat16"},
    "deepfm, bfloat16": {"precision": "bfloat16", "update": "lazy"},
    "deepfm, weights": {"weights": True},
    "deepfm, xla": {"jit_compile": True, "precision": "bfloat16"},
}


def trained(tf, backend, name, *, precision="float32", jit_compile=False, weights=False,
            update="exact", **settings):  # fmt: skip
    """Train a model for four steps; returns its weights."""
    rng, rows = np.random.default_rng(3), 64
    fields = {"a": 40, "b": 9, "c": 3}
    schema = schema_of_tables(fields, continuous=["x", "y"])
    with computing_in(precision):
        model = getattr(cc.models, name.split(",")[0])(
            schema, embedding_dim=4, mlp=(6, 5), seed=3, init_std=0.3, **settings
        )
    model.blocks[0].jit_compile = jit_compile
    ids = (rng.random((rows, 3)) ** 4 * list(fields.values())).astype(np.int32)
    columns = [ids, rng.random((rows, 2)).astype("f"), rng.integers(0, 2, rows).astype("f")]
    weight = np.repeat([0.0, 1.0, 2.0, 0.5], rows // 4).astype("f") if weights else None
    data = DeviceData(ColumnArrays(*columns, weight=weight))
    adams = [tf.keras.optimizers.legacy.Adam(rate) for rate in (1e-2, 1e-3)]
    opt = cc.CowClip(*adams, l2=1e-3, update=update, backend=backend)
    step = make_train_step(model, opt, data, tf.Variable(0.0, dtype=tf.float64))
    for first in range(0, rows, 16):
        step(tf.range(first, first + 16, dtype=tf.int64))
    return [x.numpy() for x in model.variables if model.flush() is None]


@pytest.mark.one_case
@pytest.mark.parametrize("name", MODELS)
def test_models_train_by_reads_as_by_lookups(tf, where, name):
    before = launches("read_batch")
    ours = trained(tf, "cupy", name, **MODELS[name])
    assert where == "gpu" or launches("read_batch") > before
    before = launches("read_batch")
    with tf.device("CPU"):
        theirs = trained(tf, "numba", name, **MODELS[name])
    assert launches("read_batch") == before
    rtol = 1e-2 if "precision" in MODELS[name] else 1e-5
    for x, y in zip(theirs, ours, strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol * np.abs(x).max())


@pytest.mark.system
@pytest.mark.one_case
@pytest.mark.parametrize("name", ["deepfm, bfloat16", "deepfm", "dcnv2, bfloat16", "dcn, all"])
def test_a_read_and_hidden_layers_as_one_operation_train_as_keras(
    tf, fake_cublas, monkeypatch, name
):
    """The operation takes what the read gives as it is: padded, and in its type."""
    trained(tf, "cupy", name, **MODELS[name])  # which checks the hidden layers
    fake_cublas.reset()
    ours = trained(tf, "cupy", name, **MODELS[name])
    forward, backward = ["relu+mask", "relu"], ["plain", "drelu", "plain", "plain"]
    assert fake_cublas.products() == 4 * (forward + backward)
    monkeypatch.setattr("cowclip_merlin.models.hidden.layers.gpu_of", lambda variable: None)
    theirs = trained(tf, "numba", name, **MODELS[name])
    assert len(fake_cublas.products()) == 4 * 6
    rtol = 1e-2 if "precision" in MODELS[name] else 1e-5
    for x, y in zip(theirs, ours, strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol * np.abs(x).max())


@pytest.mark.system
def test_a_read_is_stepped_with_its_own_tables_in_order(tf, emulated):
    model = Batches(tf, "cupy", graph=False)
    ids, numbers = tf.zeros([2, FIELDS], tf.int64), tf.zeros([2, NUMBERS])
    form = ReadForm(model.offsets, model.width, model.dtype, True)
    read = model.opt.read_batch(model.tables, ids, numbers, form)
    pairs = read.pairs(tuple(map(tf.zeros_like, read.outputs)))
    for wrong in (pairs[::-1], pairs[:1]):
        with pytest.raises(InputError, match="give apply_gradients all of its `pairs`"):
            model.opt.apply_gradients(wrong, experimental_aggregate_gradients=False)
    opt = cc.CowClip(backend="cupy", update="lazy", embeddings=model.tables[:1])
    assert opt.read_batch(model.tables, ids, numbers, form) is None  # one has another optimizer


@pytest.mark.system
def test_sizes_of_a_read_are_checked(tf, emulated):
    model = Batches(tf, "cupy", graph=False)
    ids, numbers = tf.zeros([2, FIELDS], tf.int64), tf.zeros([2, NUMBERS])
    form = ReadForm(model.offsets, model.width, model.dtype, True)
    wrong = {
        "2 rows and 5 columns of ids, but offsets of 4 columns": (
            ids, numbers, form._replace(offsets=[0] * 4),
        ),
        "and 1 rows of numbers": (ids, numbers[:1], form),
        "width is 8": (ids, numbers, form._replace(width=8)),
    }  # fmt: skip
    for words, given in wrong.items():
        with pytest.raises(tf.errors.InvalidArgumentError, match=words):
            model.opt.read_batch(model.tables, *given)


@pytest.mark.parametrize("kind", ["mmoe", None])
def test_gates_know_no_padded_columns(tf, monkeypatch, kind):
    """So a model of several networks goes on by lookups, though it has one target."""
    schema = schema_of_tables({"a": 5}, continuous=["x"])
    rating = ColumnSchema("rating", dtype=np.float32, tags=[Tags.TARGET, Tags.REGRESSION])
    if kind:
        schema = Schema([*schema.excluding_by_name("click"), rating])
    model = cc.models.deepfm(schema, embedding_dim=3, mlp=(4,), multi_task=kind).blocks[0]
    outputs = [tf.zeros([2, columns]) for columns in (8, 1, 1, 3)]
    read = BatchRead(*outputs, tf.zeros([9], tf.uint32), [], tf.zeros([2, 1], tf.int32), [])
    monkeypatch.setattr(model.row_sync, "cowclip", SimpleNamespace(reads_batches=True))
    monkeypatch.setattr(model.row_sync, "read_batch", lambda *_: read)
    batch = Batch(Ids(tf.zeros([2, 1], tf.int32)), tf.zeros([2, 1]), tf.zeros([2]))
    assert (model.read_at_once(batch) is None) == (kind == "mmoe")
