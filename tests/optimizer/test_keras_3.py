"""Keras 3 beside CowClip: errors say which Keras, and what to write instead."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.system


def python(*words):
    """Run code that is not told to use Keras 2."""
    environment = {k: v for k, v in os.environ.items() if k != "TF_USE_LEGACY_KERAS"}
    done = subprocess.run(
        [sys.executable, "-c", *words], capture_output=True, text=True,
        env=environment | {"KERAS_BACKEND": "tensorflow"},
    )  # fmt: skip
    if "no Keras 3" in done.stderr:
        pytest.skip("this line has no Keras 3")
    return done


SCRIPT = """
import cowclip_merlin as cc
import keras
import numpy as np
import tensorflow as tf

if keras.__version__ < "3":
    raise SystemExit("no Keras 3")
layers = keras.layers
model = keras.Sequential([layers.Embedding(10, 4), layers.Flatten(), layers.Dense(1)])
optimizer = cc.CowClip()
with tf.GradientTape() as tape:
    loss = tf.reduce_sum(model(np.zeros([4, 2], int)))
gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
for use in (
    lambda: model.compile(optimizer, "mse"),
    lambda: optimizer.apply_gradients(zip(gradients, model.trainable_variables)),
):
    try:
        use()
        print("not refused")
    except Exception as error:
        print(*str(error).splitlines())
"""


def test_a_model_of_keras_3_is_refused_with_the_remedy():
    done = python(SCRIPT)
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert len(told) == 2
    for line in told:
        assert "Keras 3" in line and "`from tensorflow import keras`" in line, line


BESIDE = """
import sys
if sys.argv[1] == "keras first":
    import keras
import cowclip_merlin as cc
try:
    from cowclip_merlin.keras3 import CowClip, Embedding
except cc.InputError as error:
    raise SystemExit(f"no Keras 3: {error}")
import keras
import numpy as np
import tensorflow as tf

def losses(keras, table, optimizer):
    layers = keras.layers
    table = table(10, 4)
    parts = [layers.Input([3], dtype="int32"), table, layers.Flatten(), layers.Dense(1)]
    model = keras.Sequential(parts)
    model.compile(optimizer, "mse")
    return model.fit(np.array([[3, 7, 3]]), np.ones(1), epochs=3, verbose=0).history["loss"]

first, *_, last = losses(keras, Embedding, CowClip(0.1))
assert last < first
first, *_, last = losses(tf.keras, tf.keras.layers.Embedding, cc.CowClip())
assert last < first
"""


@pytest.mark.parametrize("order", ["keras first", "ours first"])
def test_both_kinds_of_keras_train_in_one_process(order):
    """TensorFlow chooses when it is imported; after Keras 3 the optimizer of Keras 2 says so."""
    done = python(BESIDE, order)
    if order == "ours first":
        assert done.returncode == 0, done.stderr
    else:
        last = done.stderr.strip().splitlines()[-1]
        assert "needs Keras 2" in last and "import cowclip_merlin before tensorflow" in last
