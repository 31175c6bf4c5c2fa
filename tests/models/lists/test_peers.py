"""DeepFM on lists: logits and gradients against DeepCTR's model and Merlin's, on equal weights."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from table_schemas import schema_of_tables

import cowclip_merlin as cc
from cowclip_merlin import compat
from cowclip_merlin.models import logits

sys.path.append(str(Path(__file__).parent))
import made_lists as made

mm = compat.merlin_models()
DEEPCTR = json.loads(Path(__file__).with_name("deepctr.json").read_text())


def schema_of(combiner, continuous):
    lists = dict.fromkeys(made.LISTS, combiner)
    return schema_of_tables(made.FIELDS, lists=lists, continuous=continuous)


def inputs(tf):
    found = {c: tf.constant(made.ROWS[c])[:, None] for c in made.ONE_ID}
    found |= {c: tf.ragged.constant(made.ROWS[c], tf.int32, ragged_rank=1) for c in made.LISTS}
    return found | {c: tf.constant(made.ROWS[c])[:, None] for c in made.NUMBERS}


def ours(combiner, continuous=made.NUMBERS):
    """Our model with the weights; continuous="all", as in DeepCTR."""
    model = cc.models.deepfm(
        schema_of(combiner, continuous),
        embedding_dim=made.DIM,
        mlp=made.WIDTHS,
        continuous="all",
        tables="per_field",
    )
    weights, body = made.weights(continuous), model.blocks[0]
    body.embedding.set_weights([*weights["tables"].values()])
    body.wide.set_weights([*weights["wide"].values()])
    if continuous:
        body.wide_dense.set_weights([weights["wide_dense"]])
    for layer, *pair in zip(body.hidden, weights["kernels"], weights["biases"], strict=True):
        layer.set_weights(pair)
    body.logit.set_weights([weights["logit"], weights["bias"]])
    return model, {"tables": body.embedding.tables, "wide": body.wide.tables}


def outcome(tf, compute, tables):
    """Logits, and the gradients of the mean log loss by the tables of all columns."""
    with tf.GradientTape() as tape:
        z = tf.reshape(compute(), [-1])
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(made.LABELS, z))
    found = {
        part: {
            column: tf.convert_to_tensor(gradient).numpy()
            for column, gradient in zip(made.FIELDS, gradients, strict=True)
        }
        for part, gradients in tape.gradient(loss, tables).items()
    }
    return {"logits": z.numpy()} | found


def same(found, expected):
    np.testing.assert_allclose(found["logits"], expected["logits"], rtol=0, atol=1e-6)
    for part in ("tables", "wide"):
        for column in made.FIELDS:
            np.testing.assert_allclose(
                found[part][column], expected[part][column], rtol=0, atol=1e-6
            )


@pytest.mark.parametrize("combiner", DEEPCTR)
def test_deepctr_computes_the_same(tf, combiner):
    model, tables = ours(combiner)
    same(outcome(tf, lambda: logits(model, inputs(tf), training=True), tables), DEEPCTR[combiner])


def merlins(tf, combiner):
    """Merlin's DeepFMModel with the weights, up to its logits; tables of width 1 are its wide part.

    It has no continuous columns, because Merlin's deep part leaves them out. Merlin 23.12 stacks
    the embeddings to [b, d, F], so its FM would pair the numbers of one embedding: the fixture
    `fields_first` stacks them to [b, F, d], as `FMPairwiseInteraction` documents.
    """
    from merlin.schema import Tags

    schema, weights = schema_of(combiner, ()), made.weights(())
    ids = schema.select_by_tag(Tags.CATEGORICAL)
    deep, wide = (mm.Embeddings(ids, dim=d, sequence_combiner=combiner) for d in (made.DIM, 1))
    dense = [mm.MLPBlock([width]) for width in made.WIDTHS]
    dense += [mm.MLPBlock([1], activation="linear") for _ in range(2)]
    model = mm.DeepFMModel(
        schema,
        input_block=mm.InputBlockV2(schema, categorical=deep, aggregation=None),
        wide_input_block=mm.InputBlockV2(schema, categorical=wide),
        wide_logit_block=dense[3],
        deep_block=dense[0].connect(dense[1]),
        deep_logit_block=dense[2],
        prediction_tasks=mm.BinaryOutput("click", to_call=tf.keras.layers.Activation("linear")),
    )
    model(inputs_of_merlin(tf))  # makes its variables
    tables = {
        part: [block.parallel_layers[c].table.embeddings for c in made.FIELDS]
        for part, block in (("tables", deep), ("wide", wide))
    }
    for part, variables in tables.items():
        for variable, values in zip(variables, weights[part].values(), strict=True):
            variable.assign(values)
    kernels = [*weights["kernels"], weights["logit"], np.ones([len(made.FIELDS), 1])]
    biases = [*weights["biases"], weights["bias"], np.zeros(1)]
    for layer, *pair in zip(dense, kernels, biases, strict=True):
        layer.set_weights(pair)
    return model, tables


def inputs_of_merlin(tf):
    """Lists with one more axis, as Merlin's loader gives them to a model."""
    given = inputs(tf)
    lists = {c: given[c].with_values(given[c].values[:, None]) for c in made.LISTS}
    return {c: given[c] for c in made.ONE_ID} | lists


@pytest.fixture
def fields_first(monkeypatch):
    import merlin.models.tf.blocks.interaction as interaction

    stacked = interaction.StackFeatures
    monkeypatch.setattr(interaction, "StackFeatures", lambda axis: stacked(axis=1))


@pytest.mark.usefixtures("fields_first")
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_merlins_deepfm_computes_the_same(tf, combiner):
    model, tables = ours(combiner, ())
    found = outcome(tf, lambda: logits(model, inputs(tf), training=True), tables)
    peer, tables = merlins(tf, combiner)
    same(found, outcome(tf, lambda: peer(inputs_of_merlin(tf)), tables))
