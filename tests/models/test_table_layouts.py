"""The five models tell the optimizer which rows of their tables belong to which field."""

import numpy as np
import pytest

import cowclip_merlin as cc
from cowclip_merlin.models import attach, deepfm

SMALL = {"embedding_dim": 4, "mlp": (8,), "seed": 3}
FIELDS = {"a": 7, "b": 5, "c": 11}


@pytest.mark.parametrize("way", ["compile", "attach"])
@pytest.mark.parametrize("tables", ["fused", "per_field"])
def test_fields_of_every_table_are_known(schema, tables, way):
    model, optimizer = deepfm(schema, tables=tables, **SMALL), cc.CowClip()
    model.compile(optimizer, "mse") if way == "compile" else attach(model, optimizer)
    found = [
        dict(optimizer.tables.layout_of(variable).fields)
        for variable in model.trainable_variables
        if "embeddings" in variable.name
    ]
    each = [FIELDS] if tables == "fused" else [{name: rows} for name, rows in FIELDS.items()]
    assert found == each * 2  # embeddings, and the weights of the first order


@pytest.mark.parametrize("update", ["exact", "lazy"])
def test_a_field_is_named_in_an_error_of_its_own_table(tf, schema, batch, update):
    model = deepfm(schema, tables="per_field", **SMALL)
    optimizer = cc.CowClip(update=update)
    attach(model, optimizer)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(batch, training=True))
    table = next(v for v in model.trainable_variables if "b_embeddings" in v.name)
    g = tape.gradient(loss, table)
    g = tf.IndexedSlices(g.values * np.nan, g.indices, g.dense_shape)
    said = rf"gradient of id {int(batch['b'].min())} of field 'b'"
    with pytest.raises((cc.InputError, tf.errors.OpError), match=said):
        optimizer.apply_gradients([(g, table)])
        optimizer.flush()
