"""An id outside of its own column's table is refused, though a table of all columns has its row."""

import numpy as np
import pytest
from table_schemas import schema_of_tables
from tiers import thorough

import cowclip_merlin as cc
from cowclip_merlin import compat
from cowclip_merlin.batch import Ids
from cowclip_merlin.models import logits

SIZES = {"user": 9, "item": 5, "seen": 5, "city": 4}
SETTINGS = {"embedding_dim": 3, "mlp": (4,), "seed": 2}
WRONG = [("user", 9), ("user", -1), ("item", 5), ("seen", 5), ("city", 2**40)]
ROWS = 6


def made(*, kind="fused", lists=(), tables=None, **more):
    schema = schema_of_tables(SIZES, lists=lists, tables=tables, continuous=["x"])
    model = cc.models.deepfm(schema, tables=kind, **SETTINGS, **more)
    model.compile(cc.CowClip(update="lazy"), "binary_crossentropy")
    return model


def batch(**others):
    columns = {name: np.arange(ROWS) % 4 for name in SIZES}
    return columns | {"x": np.ones(ROWS, np.float32)} | others


def wrong(name, value, dtype=np.int64):
    ids = np.arange(ROWS).astype(dtype) % 4
    ids[2] = value
    return batch(**{name: ids})


def words(name, value):
    return f"column {name} has the id {value}, but its table has the ids 0 to {SIZES[name] - 1};"


def refused(model, rows, what):
    tf, labels = compat.tensorflow(), np.ones(len(rows["x"]), np.float32)
    before = [w.numpy() for w in model.trainable_variables]
    for way in (
        lambda: model(rows),
        lambda: tf.function(lambda given: logits(model, given, training=True))(rows),
        lambda: model.predict(rows, verbose=0),
        lambda: model.evaluate(rows, labels, verbose=0),
        lambda: model.fit(rows, labels, verbose=0),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=what):
            way()
    for weights, old in zip(model.trainable_variables, before, strict=True):
        np.testing.assert_array_equal(weights, old)


@pytest.mark.parametrize(
    "how",
    [
        {},
        thorough({"kind": "per_field", "tables": {"item": "item", "seen": "item"}}),
        thorough({"freeze_embeddings": ("item",)}),
    ],
)
def test_the_column_the_id_and_the_range_are_named(how):
    model = made(**how)
    model.fit(batch(), np.ones(ROWS, np.float32), verbose=0)
    refused(model, wrong("user", 9), words("user", 9))
    for name, value in WRONG:
        with pytest.raises(compat.tensorflow().errors.InvalidArgumentError) as found:
            model(wrong(name, value))
        assert words(name, value) in str(found.value)


@pytest.mark.parametrize("ragged", [False, True])
def test_an_id_in_a_list(ragged):
    tf = compat.tensorflow()
    model = made(lists=["seen"])
    lists = tf.ragged.constant([[1], [4, 3], [2, 5], [], [1], [1]], tf.int64)
    rows = batch(seen=lists if ragged else lists.to_tensor())
    rows = {name: tf.constant(x) if name != "seen" else x for name, x in rows.items()}
    data = tf.data.Dataset.from_tensors(rows)
    for way in (lambda: model(rows), lambda: model.predict(data, verbose=0)):
        with pytest.raises(tf.errors.InvalidArgumentError, match=words("seen", 5)):
            way()
    with pytest.raises(tf.errors.InvalidArgumentError, match=words("city", 4)):
        model(rows | {"seen": lists[:, :1], "city": tf.fill([ROWS], 4)})


def test_stacked_columns():
    tf, model = compat.tensorflow(), made()
    ids = np.ones((ROWS, len(SIZES)), np.int32)
    ids[3, 1] = 5
    for given in (ids, Ids(ids)):
        rows = {"categorical": given, "continuous": np.ones((ROWS, 1), np.float32)}
        with pytest.raises(tf.errors.InvalidArgumentError, match=words("item", 5)):
            logits(model, rows)


def test_the_last_id_of_each_column_is_known():
    largest = {name: np.full(ROWS, size - 1) for name, size in SIZES.items()}
    assert np.isfinite(made()(batch(**largest))).all()


def test_a_saved_model_refuses_too(tmp_path):
    model = made()
    model.fit(batch(), np.ones(ROWS, np.float32), verbose=0)
    model.save(str(tmp_path / "model"))
    refused(cc.load_model(str(tmp_path / "model")), wrong("user", 9), words("user", 9))


def test_within_a_strategy():
    tf = compat.tensorflow()
    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
        model = made()
    with pytest.raises(tf.errors.InvalidArgumentError, match=words("item", 5)):
        model.predict(wrong("item", 5), verbose=0)


def test_xla_has_no_errors_and_scores_such_rows_as_nan():
    model = made()
    model.compile("adam", "binary_crossentropy", jit_compile=True)
    found = model.predict(wrong("user", 9), verbose=0)[:, 0]
    assert np.isnan(found).tolist() == [False, False, True, False, False, False]
