"""A table that columns share, trained by a model, against Algorithm 1 in NumPy and plain loops."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from table_schemas import schema_of_tables

import cowclip_merlin as cc
from cowclip_merlin.batch import Batch, Ids
from cowclip_merlin.models import logits
from cowclip_merlin.models.features import Features

USERS, ITEMS = 3, 6
SMALL = {"embedding_dim": 3, "mlp": (4,), "seed": 2, "init_std": 0.1}
NUMBERS = {"l2": 1e-2, "r": 0.5, "zeta": 1e-3}
LR = 1e-2
ITEM = st.integers(0, ITEMS - 1)
ROW = st.tuples(ITEM, st.integers(0, USERS - 1), st.lists(ITEM, max_size=4))
BATCHES = st.lists(st.lists(ROW, min_size=1, max_size=4), min_size=1, max_size=3)


def schema():
    """The columns item, user and liked, a list; item and liked share the table of items."""
    fields = {"item": ITEMS, "user": USERS, "liked": ITEMS}
    return schema_of_tables(fields, tables={"liked": "item"}, lists=["liked"])


def batch_of(rows, label):
    values = [id_ for item, user, liked in rows for id_ in (item, user, *liked)]
    lengths = [[1, 1, len(liked)] for _, _, liked in rows]
    ids = Ids(np.array(values, np.int64), np.array(lengths, np.int32))
    return Batch(ids, np.zeros((len(rows), 0), np.float32), label)


def occurrences(rows):
    """The row of the fused table that each id of the batch reads: items first, then users."""
    return [k for item, user, liked in rows for k in (item, ITEMS + user, *liked)]


def gradients_by_loops(tf, body, tables, rows, label):
    """The gradient of each occurrence in each table, [m, d]: every embedding is a variable."""
    found = [[tf.Variable(table[k]) for k in occurrences(rows)] for table in tables]
    with tf.GradientTape() as tape:
        combined = []
        for each in found:
            left, cells = iter(each), []
            for _, _, liked in rows:
                item, user = next(left), next(left)
                mine = [next(left) for _ in liked]
                mean = tf.add_n(mine) / len(mine) if mine else tf.zeros_like(item)
                cells.append(tf.stack([item, user, mean]))
            combined.append(tf.stack(cells))
        z = body.forward(Features(*combined, tf.zeros([len(rows), 0])))[:, 0]
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(label, z))
    return [np.stack(each) for each in tape.gradient(loss, found)]


@pytest.mark.parametrize(
    ("update", "tables"),
    [*(("exact", x) for x in ("fused", "per_field", "sharded")), ("dense", "fused"),
     ("lazy", "per_field")],
)  # fmt: skip
@settings(max_examples=4, suppress_health_check=list(HealthCheck))
@given(batches=BATCHES)
def test_training_is_that_of_the_reference(tf, reference, update, tables, batches):
    # In the first batch an id is in both columns of a row, and twice in the list.
    batches = [[(1, 0, [1, 2, 1]), (2, 1, [])], *batches]
    model = cc.models.deepfm(schema(), tables=tables, **SMALL)
    adam = tf.keras.optimizers.legacy.Adam
    optimizer = cc.CowClip(adam(LR), adam(0.0), update=update, embeddings=["embeddings"], **NUMBERS)
    cc.models.attach(model, optimizer)
    body, layers = model.blocks[0], model.row_sync.layers
    layers[1].set_weights([0.1 * np.ones(w.shape) for w in layers[1].get_weights()])
    applied = "lazy" if update == "lazy" else "dense"
    expected = [
        reference(np.concatenate(x.get_weights()), lr=LR, update=applied, **NUMBERS) for x in layers
    ]
    for rows in batches:
        label = np.arange(len(rows), dtype=np.float32) % 2
        starts = [each.w.astype(np.float32) for each in expected]
        values = gradients_by_loops(tf, body, starts, rows, label)
        for each, gradient in zip(expected, values, strict=True):
            each.step(occurrences(rows), gradient)
        with tf.GradientTape() as tape:
            z = logits(model, batch_of(rows, label), training=True)[:, 0]
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(label, z))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
    model.flush()
    for each, layer in zip(expected, layers, strict=True):
        found = np.concatenate(layer.get_weights())
        assert found.shape[0] == ITEMS + USERS
        np.testing.assert_allclose(found, each.w, atol=2e-5)
