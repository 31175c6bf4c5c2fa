"""DIN: how it trains on lists, on growing tables, and what it needs. By hand: test_logits.py."""

import numpy as np
import pytest
from by_hand import FIELDS, LISTS, SMALL, SOME, list_batch, list_schema

import cowclip_merlin as cc
from cowclip_merlin.models import growing_schema, growing_table, logits


def merlins_rows(tf, rng, n=3):
    """A batch with values and offsets of the lists, as Merlin's loader gives it to a step."""
    rows = {"item": rng.integers(0, 7, [n, 1]), "x": rng.random([n, 1]), "y": rng.random([n, 1])}
    for name in LISTS:
        offsets = np.cumsum([0, *rng.integers(0, 4, n)])
        rows[f"{name}__values"] = rng.integers(0, FIELDS[name], offsets[-1])
        rows[f"{name}__offsets"] = offsets.astype(np.int32)
    label = tf.constant(np.arange(n)[:, None] % 2)
    return {name: tf.constant(x) for name, x in rows.items()}, label


def fitted(tf, update, tables="fused"):
    model = cc.models.din(list_schema(), tables=tables, **SMALL)
    model.compile(cc.CowClip("adam", "adam", l2=1e-2, update=update), "binary_crossentropy")
    rng, losses = np.random.default_rng(0), []
    for _ in range(4):
        data = tf.data.Dataset.from_tensors(merlins_rows(tf, rng))
        losses += model.fit(data, verbose=0).history["loss"]
    return model, data, losses


@pytest.mark.thorough
def test_all_updates_and_layouts_train_alike(tf):
    model, data, losses = fitted(tf, "dense")
    for update, tables in (("exact", "fused"), ("exact", "per_field")):
        other, _, seen = fitted(tf, update, tables)
        np.testing.assert_allclose(seen, losses, rtol=1e-5)
        np.testing.assert_allclose(
            other.predict(data, verbose=0), model.predict(data, verbose=0), atol=1e-5
        )
    assert fitted(tf, "lazy")[2][-1] != losses[-1]


def test_a_growing_table_gives_the_logits_of_a_fixed_one(tf, randomised):
    schema = growing_schema(
        categorical=FIELDS, continuous=["x", "y"], label="click", combiners=LISTS,
        share_embedding={"clicked": "item", "bought": "item"},
    )  # fmt: skip
    fixed = randomised(cc.models.din(list_schema(), **SMALL))
    grown = cc.models.din(schema, tables="growing", capacity=40, **SMALL)
    adam = tf.keras.optimizers.legacy.Adam
    table = growing_table(grown, cc.CowClip(adam(0.1), adam(0.1), update="lazy"))
    batch = list_batch(SOME)
    rows = table.admit(batch.ids, now=0)
    assert table.num_fields == 2 and table.num_rows == len({1, 2, 4, 6, 0}) + len({0, 1, 2})
    body, own = fixed.blocks[0], grown.blocks[0]
    for ours, theirs in zip(own.trainable_variables, body.trainable_variables, strict=True):
        if "embeddings" not in ours.name:
            ours.assign(theirs)
    weights = own.embedding.table.numpy()
    weights[rows.values] = tf.gather(body.embedding.table, body.embedding.rows_of(batch.ids))
    own.embedding.table.assign(weights)
    np.testing.assert_array_equal(logits(grown, batch._replace(ids=rows)), logits(fixed, batch))


@pytest.mark.parametrize(
    ("lists", "more", "words"),
    [
        ({"tags": "mean"}, {}, "--multi history --share-embedding history=item"),
        ({"item": "mean"} | LISTS, {}, "--multi history --share-embedding history=item"),
        (LISTS, {"attention_mlp": ()}, "attention_mlp"),
        (LISTS, {"continuous": "all"}, "continuous 'all' has no effect"),
        (LISTS | {"bought": "sum"}, {}, "the history 'bought', so its combiner 'sum' has no"),
    ],
)
def test_what_does_not_fit_is_refused(lists, more, words):
    with pytest.raises(cc.InputError, match=words):
        cc.models.din(list_schema(lists), **more, **SMALL)
