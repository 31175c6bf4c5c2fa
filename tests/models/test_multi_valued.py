"""Lookups of multi-valued columns, against slow loops and against TensorFlow's lookup."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_schemas import schema_of_tables

import cowclip_merlin as cc
from cowclip_merlin import compat
from cowclip_merlin.batch import Batch, Ids
from cowclip_merlin.models import logits
from cowclip_merlin.models.columns import Columns
from cowclip_merlin.models.embedding import GrowingEmbedding
from cowclip_merlin.optimizer.unique_rows import sum_duplicates

SIZES = {"a": 5, "b": 4, "c": 7, "d": 3}
COMBINERS = {"b": "sum", "c": "mean", "d": "sqrtn"}  # "a" has one id per row
SETTINGS = {"embedding_dim": 3, "mlp": (4,), "seed": 2, "init_std": 0.5}


def schema():
    return schema_of_tables(SIZES, lists=COMBINERS)


@pytest.fixture(scope="module", params=["fused", "per_field", "sharded"])
def model(request):
    return cc.models.deepfm(schema(), tables=request.param, **SETTINGS)


def lists_of(name):
    """Lists of ids with nulls; a list may be null itself. The column "a" has one id per row."""
    ids = st.integers(0, SIZES[name] - 1)
    if name not in COMBINERS:
        return ids.map(lambda id_: [id_])
    return st.none() | st.lists(st.none() | ids, max_size=4)


ROWS = st.lists(st.tuples(*map(lists_of, SIZES)), min_size=1, max_size=5)


def without_nulls(lists):
    return [id_ for id_ in lists or [] if id_ is not None]


def ids_of(rows):
    """Nulls are left out, and a null list is empty."""
    lists = [[without_nulls(column) for column in row] for row in rows]
    values = [id_ for row in lists for column in row for id_ in column]
    lengths = [[len(column) for column in row] for row in lists]
    return Ids(np.array(values, np.int64), np.array(lengths, np.int32))


def tables_of(layer):
    """The table of each column."""
    if len(layer.tables) > 1:
        return [table.numpy() for table in layer.tables]
    return np.split(layer.table.numpy(), np.cumsum([*SIZES.values()])[:-1])


def by_loops(layer, rows):
    found = np.zeros((len(rows), len(SIZES), layer.dim))
    for i, row in enumerate(rows):
        for f, (name, table) in enumerate(zip(SIZES, tables_of(layer), strict=True)):
            ids = without_nulls(row[f])
            for id_ in ids:
                found[i, f] += table[id_]
            power = {"mean": 1, "sqrtn": 0.5}.get(COMBINERS.get(name), 0)
            found[i, f] /= max(len(ids), 1) ** power
    return found


def by_tensorflow(tf, layer, rows):
    """A null is a negative id there."""
    found = []
    for f, (name, table) in enumerate(zip(SIZES, tables_of(layer), strict=True)):
        lists = [[-1 if id_ is None else id_ for id_ in row[f] or []] for row in rows]
        ids = tf.ragged.constant(lists, tf.int64, ragged_rank=1).to_sparse()
        combiner = COMBINERS.get(name, "sum")
        found.append(tf.nn.safe_embedding_lookup_sparse(table, ids, combiner=combiner))
    return tf.stack(found, axis=1)


@settings(deadline=None)
@given(rows=ROWS)
def test_lookup_equals_the_loops_and_tensorflow(tf, model, rows):
    body = model.blocks[0]
    ids, _ = body.columns.stack({"categorical": ids_of(rows)})
    for layer, found in zip((body.embedding, body.wide), body.look_up(ids), strict=True):
        assert found.shape == (len(rows), len(SIZES), layer.dim)
        np.testing.assert_allclose(found, by_loops(layer, rows), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(found, by_tensorflow(tf, layer, rows), rtol=1e-6, atol=1e-6)


@settings(deadline=None)
@given(rows=ROWS)
def test_gradient_counts_each_occurrence(tf, model, rows):
    body = model.blocks[0]
    tables = getattr(body.embedding, "tables", None) or [body.embedding.table]
    with tf.GradientTape() as tape:
        found, _ = body.look_up(body.columns.stack({"categorical": ids_of(rows)})[0], training=True)
        loss = tf.reduce_sum(found**2)
    counts = []
    for table, gradient in zip(tables, tape.gradient(loss, tables), strict=True):
        unique = sum_duplicates(gradient)
        counts.append(np.zeros(table.shape[0], int))
        counts[-1][unique.ids.numpy()] = unique.cnt.numpy()
    expected = [np.zeros(size, int) for size in SIZES.values()]
    for row in rows:
        for f, lists in enumerate(row):
            for id_ in without_nulls(lists):
                expected[f][id_] += 1
    np.testing.assert_array_equal(np.concatenate(counts), np.concatenate(expected))


@settings(deadline=None)
@given(rows=ROWS)
def test_ragged_inputs_are_the_same_ids(tf, rows):
    columns = Columns.from_schema(schema())
    lists = {name: [without_nulls(row[f]) for row in rows] for f, name in enumerate(SIZES)}
    inputs = {name: tf.ragged.constant(x, tf.int64, ragged_rank=1) for name, x in lists.items()}
    inputs["a"] = tf.constant(np.array(lists["a"]))
    ids, _ = columns.stack(inputs)
    np.testing.assert_array_equal(ids.values, ids_of(rows).values)
    np.testing.assert_array_equal(ids.lengths, ids_of(rows).lengths)


def test_zeros_fill_up_a_matrix(tf, model):
    """Eagerly and in a graph bit for bit, and in Keras's `predict`, as the lists without them."""
    ragged = {name: tf.ragged.constant([[1, 2], [], [2, 1, 1]], tf.int64) for name in COMBINERS}
    dense = {name: x.to_tensor(shape=[None, 5]) for name, x in ragged.items()}
    dense["a"] = ragged["a"] = tf.constant([0, 4, 0], tf.int64)  # 0 of one id per row is an id
    expected = logits(model, ragged)
    arrays = {name: x.numpy() for name, x in dense.items()}
    scores = tf.sigmoid(expected)
    np.testing.assert_array_equal(logits(model, dense), expected)
    in_graph = tf.function(lambda x: logits(model, x))  # it sums in another order
    np.testing.assert_array_equal(in_graph(dense), in_graph(ragged))
    np.testing.assert_allclose(model.predict(arrays, verbose=0), scores, rtol=1e-6)
    sparse = dense | {name: tf.sparse.from_dense(dense[name]) for name in COMBINERS}
    np.testing.assert_allclose(model(sparse), scores, rtol=1e-6)


def test_lists_of_one_id_are_one_id_per_row(tf, model):
    dense = np.stack([np.arange(8) % size for size in SIZES.values()], axis=1)
    one, several = (
        logits(model, Batch(ids, np.zeros((8, 0), np.float32)), training=True)
        for ids in (Ids(dense), Ids(dense).multi_valued())
    )
    np.testing.assert_array_equal(one, several)


def inputs_of_merlin(rows):
    """Values and offsets of list columns, as Merlin's loader gives them to a step."""
    inputs = {}
    for f, name in enumerate(SIZES):
        lists = [without_nulls(row[f]) for row in rows]
        values = np.array([id_ for ids in lists for id_ in ids], np.int64)
        if name in COMBINERS:
            offsets = np.cumsum([0, *map(len, lists)])
            inputs |= {f"{name}__values": values, f"{name}__offsets": offsets.astype(np.int32)}
        else:
            inputs[name] = values[:, None]
    return {name: compat.tensorflow().constant(x) for name, x in inputs.items()}


@pytest.mark.one_case
@pytest.mark.parametrize("name", sorted({*cc.models.MODELS} - {"din"}))
def test_models_train_on_merlins_lists(tf, name):
    model = cc.models.MODELS[name](schema(), **SETTINGS)
    rows = [([1], [1, 1, 3], None, [2]), ([4], [], [None, 5], [0, 1, 0]), ([0], [2], [6, 6], [])]
    batch = Batch(ids_of(rows), np.zeros((3, 0), np.float32))
    data = tf.data.Dataset.from_tensors((inputs_of_merlin(rows), tf.constant([[1.0], [0], [1]])))
    model.compile(cc.CowClip(embeddings=["embeddings"]), "binary_crossentropy")
    before = logits(model, batch).numpy()
    model.fit(data, verbose=0)
    after = logits(model, batch).numpy()
    assert (before != after).all()
    np.testing.assert_allclose(model.predict(data, verbose=0), tf.sigmoid(after), rtol=1e-6)


def test_growing_tables_read_the_row_of_each_id(tf):
    layer = GrowingEmbedding(6, 2, std=0.1, seed=1)
    ids = Ids(tf.constant([1, 5, 5]), tf.constant([[2, 0], [0, 1]]))
    layer(ids)
    layer.table.assign(np.arange(12, dtype=np.float32).reshape(6, 2))
    np.testing.assert_array_equal(layer(ids), [[2, 3], [10, 11], [10, 11]])


def test_an_unknown_combiner_is_refused():
    with pytest.raises(cc.InputError, match="combiner"):
        Columns({"a": 3}, (), "click", {"a": "max"})
