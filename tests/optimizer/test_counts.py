"""How often an id of a sparse lookup is counted: as often as it occurs."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import cowclip_merlin as cc
from cowclip_merlin.errors import InputError
from cowclip_merlin.optimizer.unique_rows import (
    CountedSlices,
    counted_lookup,
    squares_of,
    sum_duplicates,
)

LISTS = [[1, 1, 2, -1, 1], [], [0, 4], [], [2, 4]]
WEIGHTS = [[1.0, 2.0, 0.0, 1.0, 0.5], [], [3.0, 1.0], [], [1.0, 2.0]]
ROWS, FLAT = 6, [id_ for ids in LISTS for id_ in ids]


def reference(table, combiner, default, weighted):
    """The result of a lookup, list by list, and how often it reads each row."""
    counts, result = [0] * ROWS, []
    for ids, weights in zip(LISTS, WEIGHTS, strict=True):
        pairs = [(i, w if weighted else 1.0) for i, w in zip(ids, weights, strict=True) if i >= 0]
        if combiner != "sum":
            pairs = [(i, w) for i, w in pairs if w > 0]
        pairs = pairs or ([] if default is None else [(default, 1.0)])
        total, square, row = 0.0, 0.0, np.zeros(table.shape[1])
        for i, w in pairs:
            counts[i] += 1
            total, square, row = total + w, square + w * w, row + w * np.float64(table[i])
        by = {"sum": 1.0, "mean": total, "sqrtn": np.sqrt(square)}[combiner]
        result.append(row / by if pairs else row)
    return np.array(result), counts


@pytest.fixture
def table(tf):
    values = np.random.default_rng(1).normal(size=[ROWS, 3]).astype("f")
    return tf.Variable(values, name="embeddings")


@pytest.mark.one_case
@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("combiner", ["mean", "sum", "sqrtn"])
def test_counts_of_a_sparse_lookup(tf, table, combiner, graph):
    ids, weights = tf.ragged.constant(LISTS, tf.int64), tf.ragged.constant(WEIGHTS)

    def look_up(ids, weights, default):
        with tf.GradientTape() as tape:
            out = tf.nn.safe_embedding_lookup_sparse(
                table, ids, weights, combiner=combiner, default_id=default
            )
        return out, tape.gradient(out, table).indices

    for default, weighted in ((None, False), (None, True), (0, False), (3, True)):
        expected, counts = reference(table.numpy(), combiner, default, weighted)
        for given, w in ((ids, weights), (ids.to_sparse(), weights.to_sparse())):
            w = w if weighted else None
            call = tf.function(look_up) if graph else look_up
            out, indices = call(given, w, default)
            np.testing.assert_allclose(out.numpy(), expected, rtol=1e-6)
            assert np.bincount(indices.numpy(), minlength=ROWS).tolist() == counts


def test_lists_of_lists_and_batches_without_ids(tf, table):
    lists = tf.ragged.constant([[[1, 2], []], [[], [3, 3]]], tf.int64).to_sparse()
    out = tf.nn.safe_embedding_lookup_sparse(table, lists)
    w = table.numpy()
    expected = [[(w[1] + w[2]) / 2, np.zeros(3)], [np.zeros(3), w[3]]]
    np.testing.assert_allclose(out, expected, rtol=1e-6)
    empty = tf.ragged.constant([[], []], tf.int64, ragged_rank=1)
    with tf.GradientTape() as tape:
        out = tf.nn.safe_embedding_lookup_sparse(table, empty)
    np.testing.assert_array_equal(out, np.zeros([2, 3]))
    assert tape.gradient(out, table).indices.shape == [0]


@pytest.mark.parametrize("graph", [True, False])
def test_a_step_of_a_sparse_lookup_is_algorithm_1(tf, table, reference_of_table, graph):
    ids = tf.ragged.constant([[1] * 250, [1, 2], [2, 3]], tf.int64).to_sparse()
    adam = tf.keras.optimizers.legacy.Adam
    opt = cc.CowClip(adam(1e-2), r=1e-2, l2=1e-3)

    def step():
        with tf.GradientTape() as tape:
            out = tf.nn.embedding_lookup_sparse(table, ids, None, combiner="sum")
            loss = tf.reduce_sum(out)
        opt.apply_gradients([(tape.gradient(loss, table), table)])

    slow = reference_of_table
    for _ in range(2):
        (tf.function(step) if graph else step)()
        slow.step([1] * 251 + [2, 2, 3], np.ones([254, 3]))
    np.testing.assert_allclose(table.numpy(), slow.w, rtol=1e-5)


@pytest.fixture
def reference_of_table(table, reference):
    return reference(table.numpy(), lr=1e-2, l2=1e-3, r=1e-2, zeta=1e-5, update="dense")


def steps_of(tf, layer, values):
    """How far each row goes in a step of `fit`, in parts of its norm: its count times r."""
    mean = tf.keras.layers.Lambda(lambda x: tf.reduce_mean(tf.reshape(x, [3, -1, 3]), 1))
    model = tf.keras.Sequential([layer, mean, tf.keras.layers.Dense(1)])
    model(values)
    sgd, table = tf.keras.optimizers.legacy.SGD, model.trainable_variables[0]
    model.compile(cc.CowClip(sgd(1e5), sgd(0.0), r=1e-6, zeta=0.0, l2=0.0), "mse")
    before = table.numpy()
    model.train_on_batch(values, np.ones(3))
    return np.linalg.norm(table.numpy() - before, axis=1) / np.linalg.norm(before, axis=1) / 0.1


def test_counts_of_keras_columns(tf):
    sparse = tf.SparseTensor([[0, 0], [0, 1], [2, 0], [2, 1]], [4, 4, 1, 4], [3, 2])
    layer = tf.keras.layers.Embedding(ROWS, 3)
    counts = [2, 1, 0, 0, 3, 0]  # Keras reads row 0 where an id is missing
    np.testing.assert_allclose(steps_of(tf, layer, sparse), counts, rtol=1e-4)
    column = tf.feature_column.categorical_column_with_identity("a", ROWS)
    layer = tf.keras.layers.DenseFeatures(tf.feature_column.embedding_column(column, 3))
    counts = [0, 1, 0, 0, 3, 0]
    np.testing.assert_allclose(steps_of(tf, layer, {"a": sparse}), counts, rtol=1e-4)


def unique_lookup(tf, table, ids):
    rows, position = tf.unique(ids)
    return tf.gather(tf.gather(table, rows), position)


def segments(tf, table, ids):
    return tf.sparse.segment_mean(table, ids, tf.zeros_like(ids), sparse_gradient=True)


@pytest.mark.parametrize("look_up", [unique_lookup, segments])
def test_a_lookup_of_distinct_ids_is_refused(tf, table, look_up):
    """Its gradient has lost how often they occur."""
    opt, before = cc.CowClip(), table.numpy()

    @tf.function
    def step(ids, more):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(look_up(tf, table, ids)) + tf.reduce_sum(tf.gather(table, more))
        opt.apply_gradients([(tape.gradient(loss, table), table)])

    with pytest.raises(InputError, match=r"'embeddings:0' .*each distinct id"):
        step(tf.constant([1, 2, 2]), tf.constant([3]))
    np.testing.assert_array_equal(table.numpy(), before)


def test_positions_among_distinct_ids_are_no_distinct_ids(tf, table):
    opt = cc.CowClip()

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, tf.unique(ids)[1]))
        opt.apply_gradients([(tape.gradient(loss, table), table)])

    before = table.numpy()
    step(tf.constant([1, 2, 2]))
    assert (table.numpy() != before).any()


def test_micro_batches_of_shards_are_refused(tf):
    """A worker gets sums of the whole batches of the others."""
    slices = CountedSlices(tf.ones([2, 3]), tf.constant([0, 1]), tf.constant([4, 1]))
    assert squares_of(slices, 1) is None
    with pytest.raises(InputError, match='tables="fused", or the rule "sde"'):
        squares_of(slices, 8)


def counted_gradient(tf, table, rows, counts, *, look_up=counted_lookup):
    """The rows of a lookup, and the gradient of the sum of their squares."""
    with tf.GradientTape() as tape:
        found = look_up(table, rows, counts)
        loss = tf.reduce_sum(found**2)
    return found, tape.gradient(loss, table)


@hypothesis.given(
    occurrences=st.lists(st.tuples(st.integers(0, ROWS - 1), st.integers(1, 9)), max_size=8),
    graph=st.booleans(),
)
def test_a_counted_lookup_is_a_gather_whose_gradient_has_counts(tf, occurrences, graph):
    table = tf.Variable(np.random.default_rng(1).normal(size=[ROWS, 3]).astype("f"))
    rows = tf.constant([row for row, _ in occurrences], tf.int32)
    counts = tf.constant([count for _, count in occurrences], tf.int32)

    def gathered(table, rows, _):
        return tf.gather(table, rows)

    def run(look_up):
        found, slices = counted_gradient(tf, table, rows, counts, look_up=look_up)
        assert isinstance(slices, CountedSlices) == (look_up is counted_lookup)
        counted = sum_duplicates(slices)
        return found, slices.values, slices.indices, counted.ids, counted.cnt, counted.g

    mine, plain = (
        (tf.function(run) if graph else run)(each) for each in (counted_lookup, gathered)
    )
    for x, y in zip((*mine[:4], mine[5]), (*plain[:4], plain[5]), strict=True):
        np.testing.assert_array_equal(x, y)
    expected = np.bincount(rows, counts, minlength=ROWS)
    assert [int(n) for n in mine[4]] == [expected[row] for row in mine[3].numpy()]


def test_a_counted_lookup_reads_its_rows_alone(tf, table):
    """A step that reads a table as a whole would take as much memory again."""
    step = tf.function(lambda rows, counts: counted_gradient(tf, table, rows, counts)[1].values)
    numbers = tf.TensorSpec([None], tf.int32)
    operations = step.get_concrete_function(numbers, numbers).graph.get_operations()
    assert sum(op.type == "ResourceGather" for op in operations) == 2  # one of them reads no row
    assert not any(op.type == "ReadVariableOp" for op in operations)


def test_a_shard_whose_counts_are_lost_is_refused(tf, table):
    opt, before = cc.CowClip(update="lazy"), table.numpy()
    opt.tables.mark_shards([table])
    _, slices = counted_gradient(tf, table, tf.constant([1, 4]), tf.constant([2, 3]))
    scaled = tf.IndexedSlices(slices.values * 2, slices.indices)
    with pytest.raises(InputError, match=r"'embeddings:0', of which .*lost .*counts"):
        opt.apply_gradients([(scaled, table)])
    np.testing.assert_array_equal(table.numpy(), before)
    opt.apply_gradients([(slices, table)])
    assert (table.numpy() != before).any(1).tolist() == [False, True, False, False, True, False]
