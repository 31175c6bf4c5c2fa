"""`cowclip_merlin.keras3.CowClip` with what Keras offers around an optimizer."""

import os
import subprocess
import sys

import numpy as np
import pytest

from cowclip_merlin import InputError

pytestmark = [pytest.mark.system, pytest.mark.quick]


def python(code, **environment):
    environment |= {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def assert_same(model, other):
    for a, b in zip(model.get_weights(), other.get_weights()):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("update", ["exact", "dense", "lazy"])
@pytest.mark.parametrize("rates", ["numbers", "schedules"])
def test_a_training_resumes_bit_for_bit(keras, trained, batches, train, tmp_path, update, rates):
    how = {"dense_lr": 3e-2}
    if rates == "schedules":
        how = {"dense_lr": keras.optimizers.schedules.PolynomialDecay(0.0, 40, 1e-2)}
    model = trained(update, **how)
    if rates == "numbers":
        model.optimizer.learning_rate = 3e-3
        train(model, batches(3))
    model.save(tmp_path / "model.keras")
    other = keras.saving.load_model(tmp_path / "model.keras")
    for a, b in zip(model.optimizer.variables, other.optimizer.variables, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    for each in (model, other):
        train(each, batches(20, seed=7))
    assert_same(model, other)
    assert model.optimizer.get_config() == other.optimizer.get_config()


@pytest.mark.parametrize("dense_lr", [None, 3e-2, "schedule"])
def test_callbacks_change_both_rates(keras, cowclip, model_of, batches, train, dense_lr):
    """A run whose rates fall to a tenth is one that begins with these rates."""
    constant = keras.optimizers.schedules.PiecewiseConstantDecay
    rates = [(0.1, dense_lr), (0.01, dense_lr and 3e-3)]
    if dense_lr == "schedule":
        rates = [(0.1, constant([9], [3e-2, 3e-3])), (0.01, constant([9], [3e-3, 3e-4]))]
    ours, theirs = (model_of(cowclip(a, dense_lr=b)) for a, b in rates)
    falls = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 10)
    train(ours, batches(20), callbacks=[falls])
    train(theirs, batches(20))
    for a, b in zip(ours.get_weights(), theirs.get_weights()):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_plateau_lowers_both_rates(keras, trained, batches, train):
    model = trained(dense_lr=4e-2)
    plateau = keras.callbacks.ReduceLROnPlateau("loss", 0.5, patience=1, min_delta=10)
    train(model, batches(5), epochs=3, callbacks=[plateau])
    config = model.optimizer.get_config()
    assert config["learning_rate"] == pytest.approx(0.25e-2)
    assert config["dense_lr"] == pytest.approx(1e-2)


@pytest.mark.parametrize("how", [{"run_eagerly": True}, {"steps_per_execution": 5}])
def test_steps_are_the_same_however_keras_runs_them(
    cowclip, model_of, trained, batches, train, how
):
    model, other = trained(), model_of(cowclip(1e-2, l2=1e-3), **how)
    train(other, batches(30))
    for a, b in zip(model.get_weights(), other.get_weights()):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_loss_that_is_scaled(keras, cowclip, model_of, trained, batches, train):
    """Its gradients are divided again; a step with an infinite one is left out."""
    model = trained()
    scaled = keras.optimizers.LossScaleOptimizer(cowclip(1e-2, l2=1e-3), initial_scale=1024.0)
    other = model_of(scaled)
    train(other, batches(30))
    for a, b in zip(model.get_weights(), other.get_weights()):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    ids, labels = batches(1)
    train(other, (ids, labels * np.float32(np.inf)))
    for a, b in zip(model.get_weights(), other.get_weights()):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert float(scaled.dynamic_scale.numpy()) == 512


def test_mixed_precision(keras, cowclip, model_of, batches, train):
    keras.config.set_dtype_policy("mixed_float16")
    try:
        exact, dense = (model_of(cowclip(1e-2, update=update)) for update in ("exact", "dense"))
    finally:
        keras.config.set_dtype_policy("float32")
    for model in (exact, dense):
        before = model.get_weights()
        train(model, batches(30))
        assert model.layers[0](np.zeros(1, int)).dtype == "float16"
        assert (before[0] != model.get_weights()[0]).any()
    assert isinstance(exact.optimizer, keras.optimizers.LossScaleOptimizer)
    np.testing.assert_allclose(exact.get_weights()[0], dense.get_weights()[0], rtol=1e-3, atol=1e-5)


def test_tables_of_equal_names(tf, cowclip):
    """As in layers that were made apart."""
    from cowclip_merlin.keras3 import Embedding

    layers = [Embedding(5, 2, name="table") for _ in range(2)]
    with tf.GradientTape() as tape:
        loss = sum(tf.reduce_sum(layer(np.array([i]))) for i, layer in enumerate(layers))
    tables = [layer.weights[0] for layer in layers]
    assert tables[0].path == tables[1].path
    before = [table.numpy() for table in tables]
    cowclip(0.1, update="lazy").apply(tape.gradient(loss, [x.value for x in tables]), tables)
    moved = [(a != b.numpy()).all(axis=1).tolist() for a, b in zip(before, tables)]
    assert moved == [[True] + [False] * 4, [False, True] + [False] * 3]


PLACES = """
import numpy as np, tensorflow as tf
two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], two)
import keras
from cowclip_merlin.keras3 import CowClip, Embedding
with tf.device("CPU:1"):
    model = keras.Sequential([Embedding(10, 4), keras.layers.Flatten(), keras.layers.Dense(1)])
    model.build((None, 3))
model.compile(CowClip(0.01), "mse")
model.fit(np.array([[3, 7, 3]]), np.ones(1), verbose=0)
print(*(x.value.device[-5:] for x in model.optimizer.variables[2:]))
"""


def test_moments_are_where_the_weights_are(keras):
    """Not on the usual device: on a GPU, steps would be made in copies of a table's moments."""
    done = python(PLACES, KERAS_BACKEND="tensorflow")
    assert done.stdout.split() == ["CPU:1"] * 6, done.stderr


def test_a_dense_weight_may_be_a_variable_of_tensorflow(tf, cowclip):
    from cowclip_merlin.keras3 import Embedding

    layer, weight = Embedding(5, 2), tf.Variable([1.0])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(np.array([1]))) + tf.reduce_sum(weight)
    gradients = tape.gradient(loss, [layer.weights[0].value, weight])
    cowclip(0.1).apply_gradients(zip(gradients, [layer.weights[0], weight]))
    assert weight.numpy() == pytest.approx(0.9, abs=1e-5)


def test_a_frozen_table_stays(cowclip, model_of, batches, train):
    model = model_of(cowclip(1e-2))
    train(model, batches(5))
    frozen, before = model.layers[0], model.get_weights()
    frozen.trainable = False
    model.compile(cowclip(1e-2), "mse")
    train(model, batches(5))
    same = [(a == b).all() for a, b in zip(before, model.get_weights())]
    assert same == [True, False, False]
    frozen.trainable = True
    model.compile(cowclip(1e-2), "mse")
    train(model, batches(5))
    assert (model.get_weights()[0] != before[0]).any()


def test_xla_is_left_out_or_refused(keras, cowclip, model_of, batches, train):
    with pytest.warns(UserWarning, match="doesn't support `jit_compile=True`"):
        model = model_of(cowclip(), jit_compile=True)
    train(model, batches(2))
    model = model_of(cowclip(update="dense"), kind=keras.layers.Embedding, jit_compile=True)
    with pytest.raises(InputError, match=r"use compile\(jit_compile=False\)"):
        train(model, batches(2))


REFUSED = {
    "word": ({"learning_rate": "fast"}, "learning_rate is 'fast'; give a number or a schedule"),
    "function": ({"dense_lr": lambda: 0.1}, "dense_lr is <function"),
    "no rate": ({"learning_rate": 0.0, "dense_lr": 0.1}, "learning_rate is 0, and dense_lr"),
    "decay": ({"weight_decay": 0.1}, "CowClip has no weight_decay; use l2="),
    "clipnorm": ({"clipnorm": 1.0}, 'CowClip has no clipnorm; limit rows by clip="column"'),
    "average": ({"use_ema": True}, "CowClip has no use_ema"),
    "parts": ({"gradient_accumulation_steps": 2}, "no gradient_accumulation_steps; use a larger"),
    "scale": ({"loss_scale_factor": 8.0}, "no loss_scale_factor; use keras.optimizers.LossScale"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_one_clear_line(cowclip, case):
    arguments, words = REFUSED[case]
    with pytest.raises(InputError, match=words) as caught:
        cowclip(**arguments)
    assert "\n" not in str(caught.value)


def test_arguments_of_keras_without_effect(cowclip):
    assert cowclip(clipnorm=None, use_ema=False).get_config() == cowclip().get_config()
    with pytest.raises(TypeError, match="no argument 'momentum'"):
        cowclip(momentum=0.9)


def test_what_a_step_refuses_changes_nothing(keras, tf, cowclip, model_of, batches, train):
    model = model_of(cowclip(1e-2), run_eagerly=True)
    train(model, batches(3))
    before = model.get_weights()
    ids, _ = batches(1)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model.layers[0].embeddings ** 2) + tf.reduce_sum(model(ids))
    gradients = tape.gradient(loss, model.trainable_variables)
    with pytest.raises(InputError, match="has a dense gradient: use the table for lookups only"):
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    for wrong in (-1, 60):
        with pytest.raises(tf.errors.InvalidArgumentError, match=rf"{wrong} is not in \[0, 60\)"):
            model.predict(np.full((1, 4), wrong), verbose=0)
    for a, b in zip(before, model.get_weights()):
        np.testing.assert_array_equal(a, b)


def test_models_that_cannot_be_trained(keras, tf, cowclip, model_of, batches, train):
    with pytest.raises(InputError, match=r"needs cowclip_merlin\.keras3\.Embedding"):
        train(model_of(cowclip(), kind=keras.layers.Embedding), batches(1))
    with pytest.raises(InputError, match="l2= of CowClip in place of a regularizer"):
        train(model_of(cowclip(), l2=0.1), batches(1))
    model = model_of(cowclip())
    model.weights[0].constraint = keras.constraints.MaxNorm(1.0)
    with pytest.raises(InputError, match="has a constraint"):
        train(model, batches(1))
    keras.config.set_dtype_policy("float16")
    try:
        model = model_of(cowclip())
    finally:
        keras.config.set_dtype_policy("float32")
    with pytest.raises(InputError, match=r"tables must be float32 \[rows, d\], not float16"):
        train(model, batches(1))
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = model_of(cowclip())
    with pytest.raises(InputError, match="has no strategies"):
        train(model, batches(1))


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_another_backend_is_refused_by_name(keras, backend):
    done = python("import cowclip_merlin.keras3", KERAS_BACKEND=backend)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode and backend in last and "KERAS_BACKEND=tensorflow" in last
