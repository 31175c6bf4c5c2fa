"""Merlin's own models with CowClip: that they train, and which counts their gradients give."""

import sys
from pathlib import Path

import numpy as np
import pytest

import cowclip_merlin as cc
from cowclip_merlin import compat

sys.path.append(str(Path(__file__).parents[1]))
import own_models_of_merlin as own

mm = compat.merlin_models()
ROWS = 64


def wide_and_deep(schema, task):
    from merlin.schema import Tags

    wide = schema.select_by_tag(Tags.CATEGORICAL)
    return mm.WideAndDeepModel(
        schema,
        wide_schema=wide,
        deep_schema=schema,
        wide_preprocess=mm.CategoryEncoding(wide, sparse=True),
        deep_block=mm.MLPBlock([8]),
        prediction_tasks=task,
    )


def deepfm(schema, task):
    block = mm.MLPBlock([8])
    return mm.DeepFMModel(schema, embedding_dim=4, deep_block=block, prediction_tasks=task)


def dlrm(schema, task):
    blocks = {"bottom_block": mm.MLPBlock([8, 4]), "top_block": mm.MLPBlock([8])}
    return mm.DLRMModel(schema, embedding_dim=4, **blocks, prediction_tasks=task)


def dcn(schema, task):
    return mm.DCNModel(schema, depth=2, deep_block=mm.MLPBlock([8]), prediction_tasks=task)


def clicks(tf):
    rng = np.random.default_rng(1)
    fields = {"a": 7, "b": 5, "c": 11}
    values = {name: rng.integers(1, size, [ROWS, 1]) for name, size in fields.items()}
    values |= {name: rng.random([ROWS, 1]).astype("f") for name in ("x", "y")}
    return tf.data.Dataset.from_tensor_slices((values, (values["a"] < 3).astype("f"))).batch(16)


def losses(tf, schema, make, optimizer):
    tf.keras.utils.set_random_seed(7)
    model = make(schema, mm.BinaryOutput("click"))
    model.compile(optimizer, "binary_crossentropy")
    return model.fit(clicks(tf), epochs=4, verbose=0).history["loss"]


# The smoke runs have all models; Wide&Deep differs most from one embedding a column and row.
@pytest.mark.one_case
@pytest.mark.parametrize(("name", "update"), [("DLRM", "dense"), ("Wide&Deep", "lazy")])
def test_it_learns(name, update):
    model, losses, tables = own.fit(name, update)
    assert losses[-1] < 0.1 * losses[0]
    assert tables == own.MODELS[name][1]
    assert model.optimizer.iterations.numpy() == own.EPOCHS * own.ROWS // own.BATCH
    data = own.clicks(own.columns_of(name))
    assert np.isfinite(model.predict(data, verbose=0)).all()


def test_exact_updates_are_refused():
    assert own.refuses_exact("DLRM")


@pytest.mark.one_case
@pytest.mark.parametrize("make", [wide_and_deep, dlrm])
def test_without_clip_and_l2_it_is_adam(tf, schema, make):
    adam = tf.keras.optimizers.legacy.Adam
    plain = losses(tf, schema, make, adam(1e-2))
    both = losses(tf, schema, make, cc.CowClip(adam(1e-2), adam(1e-2), clip="none", l2=0.0))
    np.testing.assert_allclose(both, plain, rtol=1e-5)


@pytest.mark.parametrize(("make", "times"), [(wide_and_deep, 1), (deepfm, 2), (dlrm, 1), (dcn, 1)])
def test_how_often_a_row_of_the_batch_is_counted(tf, schema, make, times):
    """What docs/merlin.md says of Merlin's DeepFMModel."""
    model = make(schema, mm.BinaryOutput("click"))
    values, label = next(iter(clicks(tf)))
    model(values)  # makes its variables
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.keras.losses.binary_crossentropy(label, model(values)))
    pairs = zip(model.trainable_variables, tape.gradient(loss, model.trainable_variables))
    counted = [
        len(g.indices) for v, g in pairs if isinstance(g, tf.IndexedSlices) and v.shape[-1] > 1
    ]
    assert counted == [16 * times] * 3


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["Wide&Deep", "DeepFM"])
def test_a_loaded_model_predicts_the_same(name, tmp_path):
    model, *_ = own.fit(name, "lazy")
    data = own.clicks(own.columns_of(name))
    model.save(str(tmp_path / "model"))
    loaded = cc.load_model(str(tmp_path / "model"))
    expected = model.predict(data, verbose=0)
    np.testing.assert_allclose(loaded.predict(data, verbose=0), expected, atol=1e-6)
    again = mm.Model.load(str(tmp_path / "model"))
    np.testing.assert_allclose(again.predict(data, verbose=0), expected, atol=1e-6)
