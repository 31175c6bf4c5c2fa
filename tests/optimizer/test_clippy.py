"""The clip "clippy": what it does to the steps of Adam and Adagrad, against NumPy float64."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cowclip_merlin as cc
from cowclip_merlin import clip
from cowclip_merlin.choices import RowSettings

FIELDS = {"a": 3, "b": 5}
ROWS, DIM, LR = 8, 3, 0.3


def numpy_sigma(w, move, relative, absolute):
    """The formula of the paper over one variable, coordinate by coordinate."""
    sigma = 1.0
    for weight, u in zip(w.ravel(), move.ravel(), strict=True):
        if u != 0:
            sigma = min(sigma, (relative * abs(weight) + absolute) / abs(u))
    return sigma


class NumpyClippy:
    """Adam or Adagrad on one table, its fields bounded on their own."""

    def __init__(self, w, kind, *, l2, relative, absolute, lazy):
        self.w, self.kind, self.l2, self.lazy = w.astype(np.float64), kind, l2, lazy
        self.bounds = (relative, absolute)
        self.field = np.repeat([0, 1], list(FIELDS.values()))
        self.m, self.v = np.zeros(w.shape), np.full(w.shape, 0.1 if kind == "adagrad" else 0.0)
        self.t = 0

    def step(self, ids, values):
        """One step; the sigma of each field."""
        self.t += 1
        g = 2 * self.l2 * self.w
        np.add.at(g, ids, values)
        rows = np.unique(ids) if self.lazy else np.arange(len(self.w))
        move = np.zeros(self.w.shape)
        move[rows] = self.move(rows, g[rows])
        sigmas = np.ones(self.field.max() + 1)
        for f in range(len(sigmas)):
            mine = self.field == f
            sigmas[f] = numpy_sigma(self.w[mine], move[mine], *self.bounds)
        self.w -= sigmas[self.field][:, None] * move
        return sigmas

    def move(self, rows, g):
        if self.kind == "adagrad":
            self.v[rows] += g**2
            return LR * g / (np.sqrt(self.v[rows]) + 1e-7)
        self.m[rows] = 0.9 * self.m[rows] + 0.1 * g
        self.v[rows] = 0.999 * self.v[rows] + 0.001 * g**2
        alpha = LR * np.sqrt(1 - 0.999**self.t) / (1 - 0.9**self.t)
        return alpha * self.m[rows] / (np.sqrt(self.v[rows]) + 1e-7)


def keras(tf, kind):
    return {"adam": tf.keras.optimizers.legacy.Adam, "adagrad": tf.keras.optimizers.legacy.Adagrad}[
        kind
    ](LR)


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    dim=st.integers(1, 6),
    relative=st.floats(0, 2),
    absolute=st.floats(0, 1),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 100.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_factor_is_the_papers(tf, sizes, dim, relative, absolute, scale, seed):
    rng = np.random.default_rng(seed)
    field = np.repeat(np.arange(len(sizes)), sizes)
    w, move = rng.normal(0, 1, (2, len(field), dim))
    w[rng.random(len(w)) < 0.2] = 0
    move *= scale
    rows = clip.RowUpdates(
        update=tf.constant(move),
        w=tf.constant(w),
        field=tf.constant(field),
        num_fields=len(sizes),
    )
    chosen = RowSettings(clip="clippy", lambda_rel=relative, lambda_abs=absolute)
    factor = clip.update_factor(rows, chosen).numpy()
    expected = [numpy_sigma(w[field == f], move[field == f], relative, absolute) for f in field]
    np.testing.assert_allclose(factor, expected, rtol=1e-12, atol=1e-300)
    assert (np.abs(factor[:, None] * move) <= (relative * np.abs(w) + absolute) * (1 + 1e-12)).all()


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(
    kind=st.sampled_from(["adam", "adagrad"]),
    update=st.sampled_from(["dense", "lazy"]),
    l2=st.sampled_from([0.0, 1e-3, 0.3]),
    relative=st.sampled_from([0.0, 0.1, 0.5]),
    absolute=st.sampled_from([1e-3, 1e-2, 10.0]),
    graph=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_ten_steps(tf, kind, update, l2, relative, absolute, graph, seed):
    rng = np.random.default_rng(seed)
    w = rng.normal(0, 0.1, (ROWS, DIM)).astype(np.float32)
    table = tf.Variable(w)
    optimizer = cc.CowClip(
        keras(tf, kind), clip="clippy", update=update, l2=l2, fields=FIELDS,
        lambda_rel=relative, lambda_abs=absolute,
    )  # fmt: skip
    expected = NumpyClippy(
        w, kind, l2=l2, relative=relative, absolute=absolute, lazy=update == "lazy"
    )

    def step(ids, values):
        optimizer.apply_gradients([(tf.IndexedSlices(values, ids, w.shape), table)])

    run = tf.function(step) if graph else step
    for _ in range(10):
        ids = rng.integers(0, ROWS, 6)
        values = rng.normal(0, rng.choice([0.01, 1.0]), (6, DIM)).astype(np.float32)
        run(tf.constant(ids), tf.constant(values))
        sigmas = expected.step(ids, values)
        np.testing.assert_allclose(table.numpy(), expected.w, atol=2e-5)
        expected.w = table.numpy().astype(np.float64)
        factors = sigmas[expected.field[np.unique(ids)]]
        assert optimizer.mean_clip_factor.numpy() == pytest.approx(factors.mean(), rel=1e-3)


@pytest.mark.parametrize("kind", ["adam", "adagrad"])
@pytest.mark.parametrize("update", ["dense", "lazy"])
def test_a_bound_that_is_never_met_changes_no_bit(tf, kind, update):
    rng = np.random.default_rng(0)
    w = rng.normal(0, 0.1, (ROWS, DIM)).astype(np.float32)
    tables = {"none": tf.Variable(w), "clippy": tf.Variable(w)}
    optimizers = {
        name: cc.CowClip(
            keras(tf, kind), clip=name, update=update, backend="tensorflow", lambda_abs=1e3
        )
        for name in tables
    }
    for _ in range(10):
        ids = tf.constant(rng.integers(0, ROWS, 6))
        values = tf.constant(rng.normal(0, 1, (6, DIM)), tf.float32)
        for name, table in tables.items():
            slices = tf.IndexedSlices(values, ids, w.shape)
            optimizers[name].apply_gradients([(slices, table)])
    np.testing.assert_array_equal(tables["none"].numpy(), tables["clippy"].numpy())
    assert optimizers["clippy"].clipped_share.numpy() == 0


def test_skipped_tables_and_dense_weights_keep_their_steps(tf):
    """Of three variables with the same gradient one is held back, and in proportion."""
    start = np.full((4, 2), 0.1, np.float32)
    tables = {name: tf.Variable(start, name=name) for name in ("embeddings", "wide")}
    kernel = tf.Variable(start)
    optimizer = cc.CowClip("sgd", "sgd", clip="clippy", l2=0.0, skip=["^wide"])
    g = np.array([[1.0, 4.0], [-2.0, 0.0]], np.float32)
    slices = tf.IndexedSlices(tf.constant(g), tf.constant([0, 3]), start.shape)
    dense = tf.tensor_scatter_nd_update(tf.zeros([4, 2]), [[0], [3]], g)
    optimizer.apply_gradients([*((slices, table) for table in tables.values()), (dense, kernel)])
    step = np.zeros((4, 2))
    step[[0, 3]] = 0.01 * g
    np.testing.assert_allclose(tables["wide"].numpy(), start - step, atol=1e-7)
    np.testing.assert_allclose(kernel.numpy(), start - step, atol=1e-7)
    # The longest move is 0.04 against a bound of 0.5 * 0.1 + 0.01 = 0.06: none is cut yet.
    np.testing.assert_allclose(tables["embeddings"].numpy(), start - step, atol=1e-7)
    optimizer.embedding_optimizer.learning_rate = 0.1  # 0.4 against about the same
    before = tables["embeddings"].numpy()
    optimizer.apply_gradients([(slices, table) for table in tables.values()])
    moved = before - tables["embeddings"].numpy()
    bound = 0.5 * abs(before) + 0.01
    assert (np.abs(moved) <= bound * (1 + 1e-5)).all()
    np.testing.assert_allclose(moved[0, 1], bound[0, 1], rtol=1e-5)
    np.testing.assert_allclose(moved, 10 * step * bound[0, 1] / 0.4, rtol=1e-4, atol=1e-7)


SCRIPT = """
import numpy as np
import cowclip_merlin as cc
from cowclip_merlin import compat

tf = compat.tensorflow()
rng = np.random.default_rng(0)
start = rng.normal(0, .1, (12, 4)).astype("f")
batches = [(rng.integers(0, 12, 16), rng.normal(0, 1, (16, 4)).astype("f")) for _ in range(20)]

def train(strategy, update):
    n = strategy.num_replicas_in_sync
    with strategy.scope():
        table = tf.Variable(start, name="embeddings")
        adagrad = tf.keras.optimizers.legacy.Adagrad(0.5)
        opt = cc.CowClip(adagrad, clip="clippy", update=update, l2=1e-3)

    @tf.function
    def step(ids, values):
        def replica():
            i = tf.distribute.get_replica_context().replica_id_in_sync_group
            part = slice(i * (16 // n), (i + 1) * (16 // n))
            slices = tf.IndexedSlices(values[part], ids[part], tf.constant([12, 4]))
            opt.apply_gradients([(slices, table)])
        strategy.run(replica)

    for ids, values in batches:
        step(tf.constant(ids), tf.constant(values))
    shares = [float(x) for x in strategy.experimental_local_results(opt.clipped_share)]
    return [x.numpy() for x in strategy.experimental_local_results(table)], shares[0]

for update in ("dense", "lazy"):
    (one,), share = train(tf.distribute.get_strategy(), update)
    both, _ = train(two, update)
    assert share == 1, share
    assert all(abs(one - replica).max() < 1e-6 for replica in both), update
print("equal")
"""


@pytest.mark.system
def test_two_replicas_equal_one(two_devices):
    assert two_devices.run(SCRIPT).endswith("equal\n")
