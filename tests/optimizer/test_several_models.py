"""The state of CowClip in saved models, and one CowClip for two models."""

import copy
import sys

import numpy as np
import pytest

import cowclip_merlin as cc
from cowclip_merlin.errors import InputError

COUNT = 40


def click_model(tf, layer=None):
    layers = tf.keras.layers
    tf.keras.utils.set_random_seed(1)
    rows = (layer or layers.Embedding)(20, 4, input_length=2)
    return tf.keras.Sequential([rows, layers.Flatten(), layers.Dense(1, "sigmoid")])


@pytest.fixture
def clicks():
    ids = np.random.default_rng(0).integers(0, 20, (COUNT, 2))
    return ids, (ids[:, 0] < 10).astype(np.float32)


def cowclip(tf, **more):
    schedules, adam = tf.keras.optimizers.schedules, tf.keras.optimizers.legacy.Adam
    rates = [adam(schedules.CosineDecay(1e-2, 30)) for _ in range(2)]
    return cc.CowClip(*rates, l2=1e-3, **more)


def fit(model, clicks):
    model.fit(*clicks, batch_size=4, shuffle=False, verbose=0)


FORMATS = ("model", "model.keras", "model.h5")


@pytest.mark.parametrize(
    ("settings", "format"),
    [
        *(({"update": "lazy"}, format) for format in FORMATS),
        ({"update": "dense"}, FORMATS[1]),
        ({"clip": "clippy"}, FORMATS[2]),
    ],
)
def test_a_loaded_model_goes_on_where_it_was(tf, tmp_path, clicks, format, settings):
    one = click_model(tf)
    one.compile(cowclip(tf, **settings), "binary_crossentropy")
    fit(one, clicks)
    one.save(tmp_path / format)
    other = tf.keras.models.load_model(tmp_path / format)
    assert int(other.optimizer.iterations) == 10
    fit(one, clicks)
    fit(other, clicks)
    for mine, saved in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, saved)


@pytest.mark.parametrize("format", FORMATS[:2])
def test_so_does_one_in_an_optimizer_that_scales_the_loss(tf, tmp_path, clicks, format):
    one = click_model(tf)
    scaled = tf.keras.mixed_precision.LossScaleOptimizer(cowclip(tf))
    one.compile(scaled, "binary_crossentropy")
    fit(one, clicks)
    one.save(tmp_path / format)
    other = tf.keras.models.load_model(tmp_path / format)
    fit(one, clicks)
    fit(other, clicks)
    for mine, saved in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(saved, mine, rtol=1e-6)


@pytest.mark.parametrize("format", FORMATS[:2])
def test_exact_goes_on_where_it_was(tf, tmp_path, clicks, format):
    used = []

    @tf.keras.utils.register_keras_serializable("rows of the test")
    class Rows(tf.keras.layers.Embedding):
        def call(self, ids, training=None):
            if training:
                used[-1].catch_up(self.embeddings, ids)
            return super().call(ids)

    one = click_model(tf, Rows)
    used.append(cowclip(tf, update="exact"))
    one.compile(used[-1], "binary_crossentropy")
    fit(one, clicks)
    used[-1].flush()
    one.save(tmp_path / format)
    fit(one, clicks)
    used[-1].flush()
    other = tf.keras.models.load_model(tmp_path / format)
    used.append(other.optimizer)
    fit(other, clicks)
    used[-1].flush()
    for mine, saved in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(saved, mine, rtol=1e-5, atol=1e-7)


def test_a_state_that_does_not_fit_is_told(tf, clicks):
    model = click_model(tf)
    model.compile(cowclip(tf), "binary_crossentropy")
    fit(model, clicks)
    with pytest.warns(UserWarning, match=r"optimizer state does not fit.* from a checkpoint"):
        model.optimizer.load_own_variables({"0": np.int64(3)})
    assert int(model.optimizer.iterations) == 10


def test_a_model_that_was_not_trained_has_no_state(tf, tmp_path, clicks):
    model = click_model(tf)
    model.compile(cowclip(tf), "binary_crossentropy")
    model.save(tmp_path / "model")
    other = tf.keras.models.load_model(tmp_path / "model")
    fit(model, clicks)
    fit(other, clicks)
    for mine, saved in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, saved)


@pytest.mark.parametrize("update", ["dense", "lazy"])
def test_a_second_model_needs_its_own_optimizer(tf, clicks, update):
    optimizer = cowclip(tf, update=update)
    first, second = click_model(tf), click_model(tf)
    for model in (first, second):
        model.compile(optimizer, "binary_crossentropy")
    fit(first, clicks)
    before = second.get_weights()
    with pytest.raises(InputError, match=r"has trained another model than that of .*from_config"):
        fit(second, clicks)
    for now, then in zip(second.get_weights(), before, strict=True):
        np.testing.assert_array_equal(now, then)
    fit(first, clicks)  # which it still trains
    second.compile(cc.CowClip.from_config(optimizer.get_config()), "binary_crossentropy")
    fit(second, clicks)
    with pytest.raises(InputError, match="another model"):
        copied = copy.deepcopy(optimizer) if update == "dense" else optimizer
        third = click_model(tf)
        third.compile(copied, "binary_crossentropy")
        fit(third, clicks)


def test_more_tables_of_the_same_model_may_follow(tf):
    tables = [tf.Variable(tf.ones([4, 2]), name=f"embeddings_{i}") for i in range(3)]
    slices = [tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), (4, 2)) for _ in tables]
    pairs = list(zip(slices, tables, strict=True))
    optimizer = cc.CowClip()
    optimizer.apply_gradients(pairs[:1])
    optimizer.apply_gradients(pairs)  # one was frozen before
    registered = cc.CowClip()
    registered.register_tables(tables)
    for pair in pairs:  # a call for each table
        registered.apply_gradients([pair])


def test_the_settings_of_an_optimizer_are_its_text(tf, monkeypatch):
    monkeypatch.delitem(sys.modules, "keras", raising=False)  # Keras 3, of another test
    assert repr(cc.CowClip("sgd", tf.keras.optimizers.legacy.Adam(0.5), l2=0.25)) == (
        "CowClip(embedding_optimizer=SGD(0.01), dense_optimizer=Adam(0.5), r=1.0, zeta=1e-05, "
        "bound=25.0, lambda_rel=0.5, lambda_abs=0.01, l2=0.25, update='dense', clip='cowclip', "
        "backend='auto', micro_batches=1)"
    )
    assert "dense_optimizer=Adam(CosineDecay)" in repr(cowclip(tf))
    assert tf.function(lambda: len(repr(cowclip(tf))))() > 100
