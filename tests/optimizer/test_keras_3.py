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


@pytest.mark.system
def test_a_model_of_keras_3_is_refused_with_the_remedy():
    environment = {k: v for k, v in os.environ.items() if k != "TF_USE_LEGACY_KERAS"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        env=environment | {"KERAS_BACKEND": "tensorflow"},
    )
    if "no Keras 3" in done.stderr:
        pytest.skip("this line has no Keras 3")
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert len(told) == 2
    for line in told:
        assert "Keras 3" in line and "`from tensorflow import keras`" in line, line
