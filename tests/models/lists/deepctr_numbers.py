"""Writes deepctr.json: what DeepCTR's DeepFM computes with VarLenSparseFeat columns.

    pip install --no-deps --target FOLDER deepctr==0.9.4
    TF_USE_LEGACY_KERAS=1 PYTHONPATH=FOLDER python tests/models/lists/deepctr_numbers.py

The numbers are the logits of `made_lists.ROWS`, and the gradients of the mean log loss by the
tables of all columns, with TensorFlow 2.21. DeepCTR has the combiners sum and mean, but no sqrtn.
"""

import json
from pathlib import Path

import made_lists as made
import numpy as np
import tensorflow as tf
from deepctr.feature_column import DenseFeat, SparseFeat, VarLenSparseFeat
from deepctr.models import DeepFM

MOST = 4


def columns(combiner):
    one = [SparseFeat(c, made.FIELDS[c], embedding_dim=made.DIM) for c in made.ONE_ID]
    lists = [
        VarLenSparseFeat(
            SparseFeat(c, made.FIELDS[c], embedding_dim=made.DIM),
            maxlen=MOST,
            combiner=combiner,
            length_name=f"{c}_length",  # so 0 is an id like others
        )
        for c in made.LISTS
    ]
    return [*one, *lists, *(DenseFeat(c, 1) for c in made.NUMBERS)]


def inputs():
    found = {c: np.array(made.ROWS[c])[:, None] for c in (*made.ONE_ID, *made.NUMBERS)}
    for c in made.LISTS:
        found[c] = np.array([ids + [0] * (MOST - len(ids)) for ids in made.ROWS[c]])
        found[f"{c}_length"] = np.array([[len(ids)] for ids in made.ROWS[c]])
    return found


def model_of(combiner):
    model = DeepFM(
        columns(combiner),
        columns(combiner),
        dnn_hidden_units=made.WIDTHS,
        l2_reg_linear=0,
        l2_reg_embedding=0,
    )
    weights, tables = made.weights(), {}
    for c in made.FIELDS:
        kind = "seq_emb" if c in made.LISTS else "emb"
        for part, prefix in (("wide", "linear0sparse"), ("tables", "sparse")):
            layer = model.get_layer(f"{prefix}_{kind}_{c}")
            layer.set_weights([weights[part][c]])
            tables[part, c] = layer.embeddings
    for layer in model.layers:
        kind = type(layer).__name__
        if kind == "DNN":
            layer.set_weights([*weights["kernels"], *weights["biases"]])
        elif kind in ("Dense", "Linear", "PredictionLayer"):
            name = {"Dense": "logit", "Linear": "wide_dense", "PredictionLayer": "bias"}[kind]
            layer.set_weights([weights[name]])
    return model, tables


def computed(combiner):
    model, tables = model_of(combiner)
    with tf.GradientTape() as tape:
        p = model(inputs())
        loss = tf.reduce_mean(tf.keras.losses.binary_crossentropy(made.LABELS[:, None], p))
    gradients = tape.gradient(loss, tables)
    before = tf.keras.Model(model.inputs, model.layers[-1].input)  # the sigmoid's, less the bias
    logits = before(inputs()) + made.weights()["bias"]
    np.testing.assert_allclose(tf.sigmoid(logits), p, atol=1e-6)
    found = {"logits": logits.numpy().ravel().tolist(), "tables": {}, "wide": {}}
    for (part, column), gradient in gradients.items():
        found[part][column] = tf.convert_to_tensor(gradient).numpy().tolist()
    return found


if __name__ == "__main__":
    file = Path(__file__).with_name("deepctr.json")
    numbers = {combiner: computed(combiner) for combiner in ("sum", "mean")}
    file.write_text(json.dumps(numbers) + "\n", encoding="utf-8")
