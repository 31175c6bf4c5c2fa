"""Keras 3 beside CowClip: errors say which Keras, and what to write instead."""

import os
import subprocess
import sys

import pytest

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
if {compile}:
    model.compile(optimizer, "mse")
with tf.GradientTape() as tape:
    loss = tf.reduce_sum(model(np.zeros([4, 2], int)))
gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
optimizer.apply_gradients(zip(gradients, model.trainable_variables))
"""


@pytest.mark.parametrize("compile", [True, False])
def test_a_model_of_keras_3_is_refused_with_the_remedy(compile):
    environment = {k: v for k, v in os.environ.items() if k != "TF_USE_LEGACY_KERAS"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(compile=compile)],
        capture_output=True,
        text=True,
        env=environment | {"KERAS_BACKEND": "tensorflow"},
    )
    if "no Keras 3" in done.stderr:
        pytest.skip("this line has no Keras 3")
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1
    assert "Keras 3" in last and "`from tensorflow import keras`" in last, last
