"""N replicas of batch b/N give the weights of one replica with batch b, counts included."""

import pytest

pytestmark = pytest.mark.system

SCRIPT = """
import sys
import numpy as np
import cowclip_merlin as cc
from cowclip_merlin import compat

tf = compat.tensorflow()
rng = np.random.default_rng(0)
rows, dim, b, steps = 12, 4, 16, 30
start = {"embeddings": rng.normal(0, .01, (rows, dim)), "wide": np.zeros((rows, 1))}
batches = [
    ((rng.zipf(1.4, b) - 1) % rows, rng.normal(0, .3, (b, dim)), rng.normal(0, .3, (b, 1)))
    for _ in range(steps)
]

def slices(values, ids):
    return tf.IndexedSlices(values, ids, tf.constant([rows, values.shape[1]]))

def train(strategy, update, scaled):
    n = strategy.num_replicas_in_sync
    with strategy.scope():
        tables = {k: tf.Variable(v, dtype=tf.float32, name=k) for k, v in start.items()}
        kernel = tf.Variable([1.0, 2.0])
        adam = tf.keras.optimizers.legacy.Adam
        inner = {"adam": adam, "rowwise": cc.RowWiseAdagrad}[sys.argv[2]](1e-2)
        opt = cc.CowClip(inner, "adam", l2=1e-2, update=update)
        if scaled:
            opt = tf.keras.mixed_precision.LossScaleOptimizer(opt, dynamic=False, initial_scale=1)

    @tf.function
    def step(ids, embedding, wide):
        def replica():
            i = tf.distribute.get_replica_context().replica_id_in_sync_group
            part = slice(i * (b // n), (i + 1) * (b // n))
            pairs = [
                (slices(embedding[part], ids[part]), tables["embeddings"]),
                (slices(wide[part], ids[part]), tables["wide"]),
                (tf.reduce_sum(embedding[part], 0)[:2], kernel),
            ]
            opt.apply_gradients(pairs)
        strategy.run(replica)

    for ids, embedding, wide in batches:
        step(tf.constant(ids), tf.constant(embedding, tf.float32), tf.constant(wide, tf.float32))
    inner = opt.inner_optimizer if scaled else opt
    inner.flush()
    share = strategy.experimental_local_results(inner.clipped_share)[0]
    weights = [v.numpy() for v in (*tables.values(), kernel)]
    return weights, float(share), int(opt.iterations.numpy())

update = sys.argv[1]
one = train(tf.distribute.get_strategy(), update, False)
for scaled in (False, True):  # a loss scaled by 1 changes nothing
    both = train(two, update, scaled)
    worst = max(abs(a - b).max() for a, b in zip(one[0], both[0]))
    assert worst <= 1e-6, (update, scaled, worst)
    assert abs(one[1] - both[1]) < 1e-6 and one[1] > 0, (one[1], both[1])
    assert one[2] == both[2] == steps
    print(update, scaled, worst)
print("equal")
"""


@pytest.mark.parametrize(
    ("update", "inner"),
    [*((x, "adam") for x in ("dense", "exact", "lazy")), ("dense", "rowwise"), ("lazy", "rowwise")],
)
def test_two_replicas_equal_one(two_devices, update, inner):
    assert two_devices.run(SCRIPT, update, inner).endswith("equal\n")


FIT = """
import sys
import warnings
import numpy as np
import cowclip_merlin as cc
from cowclip_merlin import compat

tf = compat.tensorflow()
rng = np.random.default_rng(0)
ids, y = rng.zipf(1.3, (256, 1)) % 90, rng.integers(0, 2, (256, 1))

class Rows(tf.keras.layers.Embedding):
    def call(self, ids, training=None):
        if training:
            optimizer.catch_up(self.embeddings, ids)
        return super().call(ids)

ends = []
warnings.filterwarnings("always", message="update=")
for strategy in (tf.distribute.get_strategy(), two):
    tf.keras.utils.set_random_seed(0)
    with strategy.scope(), warnings.catch_warnings(record=True) as told:
        adam = tf.keras.optimizers.legacy.Adam
        optimizer = cc.CowClip(adam(1e-2), adam(1e-2), l2=1e-2, update=sys.argv[1])
        model = tf.keras.Sequential([
            Rows(90, 3, input_length=1),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(1, activation="sigmoid"),
        ])
        model.compile(optimizer, "binary_crossentropy")
        data = tf.data.Dataset.from_tensor_slices((ids, y)).batch(16)
        model.fit(data, epochs=3, verbose=0)
        optimizer.flush()
    assert not [w for w in told if "brought up to date" in str(w.message)]
    ends.append(model.get_weights())
assert max(abs(a - b).max() for a, b in zip(*ends)) < 1e-6
print("equal")
"""


def test_fit_under_a_strategy(two_devices):
    assert two_devices.run(FIT, "exact").endswith("equal\n")


FLUSH = """
import numpy as np
import cowclip_merlin as cc
from cowclip_merlin import compat

tf = compat.tensorflow()
rng = np.random.default_rng(0)
rows, dim, b = 12, 3, 4
start = rng.normal(0, .1, (rows, dim))
batches = [(rng.integers(0, rows, b), rng.normal(0, .3, (b, dim))) for _ in range(6)]

def optimizer(update):
    return cc.CowClip(tf.keras.optimizers.legacy.Adam(1e-2), "adam", l2=1e-2, update=update)

def train(strategy, update, made_in_scope, flushed_in_scope):
    n = strategy.num_replicas_in_sync
    opt = None if made_in_scope else optimizer(update)
    with strategy.scope():
        table = tf.Variable(start, dtype=tf.float32, name="embeddings")
        opt = opt or optimizer(update)

        @tf.function
        def step(ids, g):
            def replica():
                i = tf.distribute.get_replica_context().replica_id_in_sync_group
                part = slice(i * (b // n), (i + 1) * (b // n))
                opt.catch_up(table, ids[part])
                slices = tf.IndexedSlices(g[part], ids[part], tf.constant([rows, dim]))
                opt.apply_gradients([(slices, table)])
            strategy.run(replica)

        for ids, g in batches:
            step(tf.constant(ids), tf.constant(g, tf.float32))
        if flushed_in_scope:
            opt.flush()
    if not flushed_in_scope:
        opt.flush()
    return [x.numpy() for x in strategy.experimental_local_results(table)]

(expected,) = train(tf.distribute.get_strategy(), "dense", True, True)
for made_in_scope in (True, False):
    for flushed_in_scope in (True, False):
        for got in train(two, "exact", made_in_scope, flushed_in_scope):
            worst = abs(got - expected).max()
            assert worst < 1e-6, (made_in_scope, flushed_in_scope, worst)
print("equal")
"""


def test_a_flush_is_one_of_all_replicas_wherever_it_is_called(two_devices):
    assert two_devices.run(FLUSH).endswith("equal\n")
