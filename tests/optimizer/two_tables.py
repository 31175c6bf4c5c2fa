"""A small model of two tables, to compare the engines of a GPU and of the CPU."""

import numpy as np

import cowclip_merlin as cc

ROWS = 40


def inner_optimizer(tf, rowwise=None, **adam):
    """Adam; or if `rowwise` is given, Adagrad with an accumulator per row, or per number."""
    if rowwise is None:
        return tf.keras.optimizers.legacy.Adam(1e-3, **adam)
    kind = cc.RowWiseAdagrad if rowwise else tf.keras.optimizers.legacy.Adagrad
    return kind(1e-2, initial_accumulator_value=1e-3)


class TwoTables:
    """Two tables that are looked up at the same ids, and their optimizer."""

    def __init__(self, tf, backend, *, dtype="float32", graph=True, index="int64", **settings):
        rng = np.random.default_rng(0)
        self.tf, self.dtype, self.index = tf, dtype, index
        start = rng.normal(0, 1e-2, (ROWS, 10)).astype("f")
        self.table = tf.Variable(start, name="embeddings")
        self.wide = tf.Variable(np.zeros((ROWS, 1), "f"), name="wide_embeddings")
        inner = inner_optimizer(tf, settings.pop("rowwise", None), **settings.pop("adam", {}))
        settings = {"l2": 1e-2, "update": "exact"} | settings
        self.opt = cc.CowClip(inner, backend=backend, **settings)
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
        inner, names = self.opt.embedding_optimizer, self.opt.row_slots
        slots = [inner.get_slot(x, n) for x in (self.table, self.wide) for n in names]
        return [x.numpy() for x in (self.table, self.wide, *slots)]


def batches(sizes, seed=1):
    rng = np.random.default_rng(seed)
    for n in sizes:
        ids = np.minimum(rng.pareto(0.5, n), ROWS - 1).astype(np.int64)
        yield ids, rng.normal(0, 0.1, (n, 10)).astype("f")


def assert_close(a, b):
    for x, y in zip(a, b, strict=True):
        assert np.abs(x - y).max() <= 2e-6 * np.abs(x).max() + 1e-12
