"""The five models: logits by hand, parameter counts, and where they start from."""

import numpy as np
import pytest
from by_hand import FIELDS, SMALL, SOME, for_task, list_batch, list_schema, logits_by_hand
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import thorough

import cowclip_merlin as cc
from cowclip_merlin.batch import Batch, Ids
from cowclip_merlin.models import MODELS, logits

NAMES = sorted({*MODELS} - {"din"})  # it needs lists
LOW_RANK = {"low_rank": 3, "experts": 2}


def one_each(batch):
    """The ids of matrices as lists, and numbers."""
    ids = np.concatenate([batch[c] for c in "abc"], 1)
    return [[[i] for i in row] for row in ids.tolist()], np.concatenate([batch[c] for c in "xy"], 1)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        *((name, {"continuous": how}) for name in NAMES for how in ("deep", "all")),
        ("dcnv2", {"continuous": "deep"} | LOW_RANK),
        *((name, {"continuous": "all", "tables": "per_field"}) for name in ("deepfm", "dcnv2")),
    ],
)
def test_logits_by_hand(schema, batch, randomised, name, more):
    model, (ids, x) = randomised(MODELS[name](schema, **more, **SMALL)), one_each(batch)
    expected = logits_by_hand(model, ids, x)
    stacked = {"categorical": np.array(ids)[:, :, 0].astype(np.int32), "continuous": x}
    np.testing.assert_allclose(logits(model, stacked), expected, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(model(batch), 1 / (1 + np.exp(-expected)), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *((name, None) for name in MODELS),
        *(("deepfm", how) for how in ("shared_bottom", "mmoe", "esmm")),
        ("wide_and_deep", "shared_bottom"),
        ("dcn", "esmm"),
        ("dcnv2", "mmoe"),
        ("din", "shared_bottom"),
        ("din", "mmoe"),
    ],
)
def test_logits_of_lists_and_several_targets_by_hand(randomised, name, how):
    """Columns that share a table, lists, and each kind of `multi_task`."""
    more = {"continuous": "all" if name != "din" else "deep", "multi_task": how, "mmoe_experts": 3}
    more |= LOW_RANK if name == "dcnv2" else {}
    model = randomised(MODELS[name](for_task(list_schema(), how), **more, **SMALL))
    batch = list_batch(SOME)
    expected = logits_by_hand(model, SOME, batch.numbers)
    np.testing.assert_allclose(logits(model, batch), expected, rtol=1e-4, atol=1e-5)


def lists(size):
    return st.lists(st.integers(0, size - 1), max_size=4)


ROW = st.tuples(st.integers(0, 6).map(lambda i: [i]), *(lists(n) for n in [*FIELDS.values()][1:]))


@pytest.fixture(scope="module")
def din():
    model = cc.models.din(list_schema(), init_std=0.5, **SMALL)
    rng = np.random.default_rng(1)
    for variable in model.variables:
        variable.assign(rng.normal(0, 0.5, variable.shape))
    return model


@settings(deadline=None)
@given(rows=st.lists(ROW, min_size=1, max_size=5))
def test_din_by_hand_and_its_gradients_by_differences(tf, din, rows):
    """A step along the gradient changes the logits as it says, in float64 by hand."""
    batch, weights = list_batch(rows), din.trainable_variables
    with tf.GradientTape() as tape:
        z = logits(din, batch, training=True)
        total = tf.reduce_sum(z)
    np.testing.assert_allclose(z, logits_by_hand(din, rows, batch.numbers), rtol=2e-5, atol=2e-5)
    gradients = [tf.convert_to_tensor(g).numpy() for g in tape.gradient(total, weights)]
    before = [weight.numpy() for weight in weights]
    length = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in gradients))
    step, ends = 1e-4 / max(length, 1e-9), []
    for sign in (1, -1):
        for weight, old, g in zip(weights, before, gradients, strict=True):
            weight.assign(old + sign * step * g)
        ends.append(logits_by_hand(din, rows, batch.numbers).sum())
    for weight, old in zip(weights, before, strict=True):
        weight.assign(old)
    np.testing.assert_allclose((ends[0] - ends[1]) / 2, 1e-4 * length, rtol=0.05, atol=1e-6)


def test_matrices_of_ids_are_lists_of_one_for_din(din):
    ids = np.array([[1, 2, 3, 4], [0, 6, 2, 1]])
    one, several = (
        logits(din, Batch(form, np.zeros((2, 2), np.float32)))
        for form in (Ids(ids), Ids(ids).multi_valued())
    )
    np.testing.assert_array_equal(one, several)


@pytest.mark.parametrize(
    ("precision", "name", "how"),
    [
        ("mixed_float16", "dcnv2", "mmoe"),
        ("mixed_bfloat16", "din", None),
        thorough("mixed_float16", "deepfm", None),
        thorough("mixed_bfloat16", "dcn", "esmm"),
    ],
)
def test_half_precision_keeps_logits_and_tables_in_float32(tf, precision, name, how):
    """Only the hidden and cross layers, and DIN's units, are in half precision."""
    made = []
    for policy in (precision, "float32"):
        tf.keras.mixed_precision.set_global_policy(policy)
        try:
            schema = for_task(list_schema(), how)
            made.append(MODELS[name](schema, multi_task=how, init_std=0.5, **SMALL))
        finally:
            tf.keras.mixed_precision.set_global_policy("float32")
    half, exact = made
    batch = list_batch(SOME)
    with tf.GradientTape() as tape:
        z = tf.function(lambda rows: logits(half, rows, training=True))(batch)
    expected = logits(exact, batch).numpy()
    assert z.dtype == tf.float32 and (z.numpy() != expected).any()
    np.testing.assert_allclose(z, expected, rtol=0.05, atol=0.05)
    found = [v for v in half.trainable_variables if "embeddings" in v.name]
    for gradient in tape.gradient(z, found):
        assert isinstance(gradient, tf.IndexedSlices) and gradient.values.dtype == tf.float32


def test_the_same_seed_gives_the_same_model(schema):
    a, b, c = (cc.models.dcnv2(schema, **(SMALL | {"seed": s})) for s in (3, 3, 4))
    for x, y in zip(a.variables, b.variables, strict=True):
        np.testing.assert_array_equal(x.numpy(), y.numpy())
    assert any((x.numpy() != y.numpy()).any() for x, y in zip(a.variables, c.variables))


def test_initial_weights(schema_of):
    model = cc.models.deepfm(schema_of({"a": 20000}), init_std=0.02, seed=1)
    body = model.blocks[0]
    assert body.embedding.table.numpy().std() == pytest.approx(0.02, rel=0.01)
    assert not body.wide.table.numpy().any() and not body.logit.bias.numpy().any()
    kernels = [block.trainable_variables[0].numpy() for block in body.hidden]
    assert kernels[1].std() == pytest.approx(np.sqrt(2 / 400), rel=0.02)
    assert (kernels[1] != kernels[2]).any()


@pytest.mark.parametrize(
    ("name", "continuous", "parameters"),
    [  # Table 7 in thousands: 431, 431, 433, 655; DCNv2 only with 273 cross inputs
        ("wide_and_deep", "deep", 430_801),
        ("deepfm", "deep", 430_801),
        ("dcn", "deep", 432_621),
        ("dcn", "all", 432_712 + 13),
        ("dcnv2", "all", 655_480 + 13),
        ("dcnv2", "deep", 634_641),
    ],
)
def test_dense_parameters_of_table_7(schema_of, name, continuous, parameters):
    fields = {f"C{i}": 4 for i in range(26)}
    schema = schema_of(fields, [f"I{i}" for i in range(13)])
    model = MODELS[name](schema, continuous=continuous, seed=1)
    dense = [v for v in model.trainable_variables if "embeddings" not in v.name]
    assert sum(int(np.prod(v.shape)) for v in dense) == parameters


@pytest.mark.parametrize(("tables", "count", "entries"), [("fused", 1, 120), ("per_field", 3, 40)])
def test_gradients_of_tables_have_one_entry_per_occurrence(
    tf, schema, batch, tables, count, entries
):
    model = cc.models.dcnv2(schema, continuous="all", tables=tables, **SMALL)
    with tf.GradientTape() as tape:
        z = logits(model, batch, training=True)
    found = [v for v in model.trainable_variables if "embeddings" in v.name]
    assert sorted(v.shape[1] for v in found) == [1] * count + [4] * count
    for gradient in tape.gradient(z, found):
        assert isinstance(gradient, tf.IndexedSlices)
        assert gradient.values.shape[0] == entries


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["deepfm", "dcnv2"])
def test_compiled_by_xla_it_trains_as_it_does_without(tf, name):
    from cowclip_merlin.bench.random_data import random_rows
    from cowclip_merlin.bench.throughput import build_model_and_optimizer, criteo_fields
    from cowclip_merlin.loading import DeviceData
    from cowclip_merlin.training.train_step import make_train_function

    fields, ends = criteo_fields(2000), []
    data = DeviceData(random_rows(96, fields))
    for jit in (False, True):
        built, optimizer = build_model_and_optimizer(
            name, "exact", "auto", "cowclip", "float32", fields, jit
        )
        steps = make_train_function(built, optimizer, data, tf.Variable(0.0, dtype=tf.float64))
        steps(tf.range(96, dtype=tf.int64), tf.constant(40))  # the last batch is smaller
        graph = steps.get_concrete_function().graph.as_graph_def()
        inside = [f for f in graph.library.function if f.attr["_XlaMustCompile"].b]
        assert bool(inside) == jit
        ends.append(built.get_weights())
    for plain, compiled in zip(*ends, strict=True):
        np.testing.assert_allclose(compiled, plain, rtol=1e-4, atol=2e-6)
