"""DIN: its logit by hand in NumPy, gradients against the padded form, and what it needs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_schemas import schema_of_tables

import cowclip_merlin as cc
from cowclip_merlin.batch import Batch, Ids
from cowclip_merlin.models import growing_schema, growing_table, logits

SMALL = {"embedding_dim": 3, "mlp": (5, 4), "seed": 2, "init_std": 0.5}
FIELDS = {"item": 7, "clicked": 7, "tags": 4, "bought": 7}  # lists except item; all items share


def din_schema(lists=("clicked", "tags", "bought")):
    tables = dict.fromkeys(("clicked", "bought"), "item")
    return schema_of_tables(FIELDS, tables=tables, lists=lists, continuous=["x"])


def lists(size):
    return st.lists(st.integers(0, size - 1), max_size=4)


ROW = st.tuples(st.integers(0, 6).map(lambda i: [i]), lists(7), lists(4), lists(7))
ROWS = st.lists(ROW, min_size=1, max_size=5)
SOME = [([1], [1, 2, 1], [0], [4]), ([2], [], [1, 2], []), ([6], [0], [], [6, 6])]


def batch_of(rows):
    values = [id_ for row in rows for column in row for id_ in column]
    lengths = np.array([[*map(len, row)] for row in rows], np.int32)
    x = np.linspace(-1, 1, len(rows), dtype=np.float32)[:, None]
    return Batch(Ids(np.array(values, np.int64), lengths), x)


@pytest.fixture(scope="module")
def model():
    model = cc.models.din(din_schema(), **SMALL)
    rng = np.random.default_rng(1)
    for variable in model.variables:
        variable.assign(rng.normal(0, 0.5, variable.shape))
    return model


def value(x):
    return np.asarray(x, np.float64)


def weight_by_hand(unit, item, target):
    """Section 4.3: the activation unit, without a softmax."""
    h = np.concatenate([item, target, item - target, item * target])
    for dense, prelu in zip(unit.hidden, unit.prelu, strict=True):
        h = h @ value(dense.kernel) + value(dense.bias)
        h = np.where(h > 0, h, value(prelu.alpha) * h)
    return (h @ value(unit.weight.kernel) + value(unit.weight.bias))[0]


def logit_by_hand(body, row, x):
    """The vectors of all columns and the number side by side, then the MLP, in float64."""
    table = value(body.embedding.table)
    items, tags = table[:7], table[7:]
    target = items[row[0][0]]
    vectors = [target]
    for column, unit in ((1, body.units[0]), (3, body.units[1])):
        weighted = [weight_by_hand(unit, items[i], target) * items[i] for i in row[column]]
        vectors.append(sum(weighted, np.zeros(3)))
    mean = sum((tags[i] for i in row[2]), np.zeros(3)) / max(len(row[2]), 1)
    h = np.concatenate([vectors[0], vectors[1], mean, vectors[2], x])
    for block in body.hidden:
        kernel, bias = block.trainable_variables
        h = np.maximum(h @ value(kernel) + value(bias), 0)
    kernel, bias = body.logit.trainable_variables
    return (h @ value(kernel) + value(bias))[0]


@settings(deadline=None)
@given(rows=ROWS)
def test_logit_by_hand(model, rows):
    batch = batch_of(rows)
    expected = [
        logit_by_hand(model.blocks[0], row, x) for row, x in zip(rows, batch.numbers, strict=True)
    ]
    np.testing.assert_allclose(logits(model, batch)[:, 0], expected, rtol=2e-5, atol=2e-6)


def padded(tf, rows, column, most=4):
    """The ids of a column, filled with 0 [b, 4], and which of them are real."""
    ids = np.zeros((len(rows), most), np.int64)
    real = np.zeros((len(rows), most, 1), np.float32)
    for i, row in enumerate(rows):
        ids[i, : len(row[column])] = row[column]
        real[i, : len(row[column])] = 1
    return tf.constant(ids), tf.constant(real)


def naive_logits(tf, body, rows, x):
    """The model on padded matrices, with one unit over all places and a mask."""
    table, b = body.embedding.table, len(rows)
    target = tf.gather(table, [row[0][0] for row in rows])
    vectors = [target]
    for column, unit in ((1, body.units[0]), (2, None), (3, body.units[1])):
        ids, real = padded(tf, rows, column)
        items = tf.gather(table, ids + (7 if column == 2 else 0)) * real
        if unit is None:
            count = tf.maximum(tf.reduce_sum(real, axis=1), 1.0)
            vectors.append(tf.reduce_sum(items, axis=1) / count)
            continue
        targets = tf.repeat(target[:, None], 4, axis=1)
        a = unit((tf.reshape(items, [-1, 3]), tf.reshape(targets, [-1, 3])))
        vectors.append(tf.reduce_sum(tf.reshape(a, [b, 4, 1]) * real * items, axis=1))
    h = tf.concat([*vectors, x], axis=1)
    for block in body.hidden:
        h = block(h)
    return body.logit(h)


@settings(deadline=None)
@given(rows=ROWS)
def test_gradients_are_those_of_the_padded_form(tf, model, rows):
    batch, weights = batch_of(rows), model.trainable_variables
    found, expected = [], []
    for into, compute in (
        (found, lambda: logits(model, batch, training=True)),
        (expected, lambda: naive_logits(tf, model.blocks[0], rows, batch.numbers)),
    ):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(compute() ** 2)
        into += [tf.convert_to_tensor(g) for g in tape.gradient(loss, weights)]
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-4)


def test_a_row_without_history_gives_zeros(model):
    body = model.blocks[0]
    v, wide = body.look_up(
        body.columns.stack({"categorical": batch_of(SOME).ids, "continuous": np.zeros((3, 1))})[0]
    )
    assert wide is None
    assert not v[1, 1].numpy().any() and not v[1, 3].numpy().any() and v[0, 1].numpy().all()


def test_the_sum_of_the_weights_is_not_one(model):
    """Twice the same history is twice the interest."""
    body = model.blocks[0]
    rows = [([1], [2], [], []), ([1], [2, 2], [], [])]
    v, _ = body.look_up(
        body.columns.stack({"categorical": batch_of(rows).ids, "continuous": np.zeros((2, 1))})[0]
    )
    np.testing.assert_allclose(v[1, 1], 2 * v[0, 1], rtol=1e-6)


def test_matrices_of_ids_are_lists_of_one(model):
    ids = np.array([[1, 2, 3, 4], [0, 6, 2, 1]])
    one, several = (
        logits(model, Batch(form, np.zeros((2, 1), np.float32)))
        for form in (Ids(ids), Ids(ids).multi_valued())
    )
    np.testing.assert_array_equal(one, several)


def merlins_rows(tf, rng, n=3):
    """A batch with values and offsets of the lists, as Merlin's loader gives it to a step."""
    rows = {"item": rng.integers(0, 7, [n, 1]), "x": rng.random([n, 1])}
    for name in ("clicked", "tags", "bought"):
        offsets = np.cumsum([0, *rng.integers(0, 4, n)])
        rows[f"{name}__values"] = rng.integers(0, FIELDS[name], offsets[-1])
        rows[f"{name}__offsets"] = offsets.astype(np.int32)
    return {name: tf.constant(x) for name, x in rows.items()}, tf.constant(
        np.arange(n)[:, None] % 2
    )


def fitted(tf, update, tables="fused"):
    model = cc.models.din(din_schema(), tables=tables, **SMALL)
    model.compile(cc.CowClip("adam", "adam", l2=1e-2, update=update), "binary_crossentropy")
    rng, losses = np.random.default_rng(0), []
    for _ in range(4):
        data = tf.data.Dataset.from_tensors(merlins_rows(tf, rng))
        losses += model.fit(data, verbose=0).history["loss"]
    return model, data, losses


@pytest.mark.thorough
@pytest.mark.one_case
def test_all_updates_and_layouts_train_alike(tf, tmp_path):
    model, data, losses = fitted(tf, "dense")
    for update, tables in (("exact", "fused"), ("exact", "per_field")):
        other, _, seen = fitted(tf, update, tables)
        np.testing.assert_allclose(seen, losses, rtol=1e-5)
        np.testing.assert_allclose(
            other.predict(data, verbose=0), model.predict(data, verbose=0), atol=1e-5
        )
    assert fitted(tf, "lazy")[2][-1] != losses[-1]
    model.save(str(tmp_path / "model"))
    loaded = cc.load_model(str(tmp_path / "model"))
    np.testing.assert_array_equal(loaded.predict(data, verbose=0), model.predict(data, verbose=0))
    assert loaded.blocks[0].attention_mlp == (36,)


def test_a_growing_table_gives_the_logits_of_a_fixed_one(tf, model):
    schema = growing_schema(
        categorical=FIELDS, continuous=["x"], label="click",
        combiners=dict.fromkeys(("clicked", "tags", "bought"), "mean"),
        share_embedding={"clicked": "item", "bought": "item"},
    )  # fmt: skip
    grown = cc.models.din(schema, tables="growing", capacity=40, **SMALL)
    adam = tf.keras.optimizers.legacy.Adam
    table = growing_table(grown, cc.CowClip(adam(0.1), adam(0.1), update="lazy"))
    batch = batch_of(SOME)
    rows = table.admit(batch.ids, now=0)
    assert table.num_fields == 2 and table.num_rows == len({1, 2, 4, 6, 0}) + len({0, 1, 2})
    fixed = model.blocks[0]
    for ours, theirs in zip(grown.blocks[0].trainable_variables, fixed.trainable_variables):
        if "embeddings" not in ours.name:
            ours.assign(theirs)
    weights = grown.blocks[0].embedding.table.numpy()
    weights[rows.values] = tf.gather(fixed.embedding.table, fixed.embedding.rows_of(batch.ids))
    grown.blocks[0].embedding.table.assign(weights)
    np.testing.assert_array_equal(logits(grown, batch._replace(ids=rows)), logits(model, batch))


def test_it_needs_a_history():
    alone = schema_of_tables(FIELDS, lists=["clicked"])
    for schema in (alone, din_schema(["tags"]), din_schema(("item", "clicked", "bought"))):
        with pytest.raises(cc.InputError, match="--multi history --share-embedding history=item"):
            cc.models.din(schema, **SMALL)
    with pytest.raises(cc.InputError, match="attention_mlp"):
        cc.models.din(din_schema(), attention_mlp=(), **SMALL)


def test_settings_without_effect_are_refused():
    with pytest.raises(cc.InputError, match="continuous 'all' has no effect"):
        cc.models.din(din_schema(), continuous="all", **SMALL)
    schema = din_schema()
    schema["tags"] = schema["tags"].with_properties({"combiner": "sum"})
    cc.models.din(schema, **SMALL)
    schema["bought"] = schema["bought"].with_properties({"combiner": "sum"})
    with pytest.raises(cc.InputError, match="the history 'bought', so its combiner 'sum' has no"):
        cc.models.din(schema, **SMALL)


def test_hidden_layers_of_the_unit_follow_the_precision(tf, model):
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        half = cc.models.din(din_schema(), **SMALL)
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    for ours, theirs in zip(half.variables, model.variables, strict=True):
        ours.assign(theirs)
    found, exact = logits(half, batch_of(SOME)), logits(model, batch_of(SOME))
    assert found.dtype == tf.float32 and (found.numpy() != exact.numpy()).any()
    np.testing.assert_allclose(found, exact, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("multi_task", ["shared_bottom", "mmoe", "esmm"])
def test_several_targets_share_the_histories(tf, multi_task):
    from merlin.schema import ColumnSchema, Tags

    schema = din_schema()
    schema["buy"] = ColumnSchema("buy", tags=[Tags.TARGET, Tags.BINARY_CLASSIFICATION])
    model = cc.models.din(schema, multi_task=multi_task, **SMALL)
    with tf.GradientTape() as tape:
        z = logits(model, batch_of(SOME), training=True)
        loss = tf.reduce_sum(z[:, 1])
    assert z.shape == (3, 2)
    unit = model.blocks[0].units[0].weight.kernel
    assert np.abs(tape.gradient(loss, unit)).max() > 0
