"""The four models of the paper: logits by hand, parameter counts, and where they start from."""

import numpy as np
import pytest

import cowclip_merlin as cc
from cowclip_merlin.models import MODELS, logits

SMALL = {"embedding_dim": 4, "mlp": (6, 5), "seed": 3}
NAMES = sorted({*MODELS} - {"din"})  # it needs lists: tests/models/test_din.py
BOTH = pytest.mark.parametrize("continuous", ["deep", "all"])


def stacked(batch):
    return {
        "categorical": np.concatenate([batch[c] for c in "abc"], 1).astype(np.int32),
        "continuous": np.concatenate([batch[c] for c in "xy"], 1),
    }


def value(x):
    return np.asarray(x, np.float64)


class ByHand:
    """A model's logit in NumPy float64, row by row, from the paper's formulas."""

    def __init__(self, model, batch, continuous):
        self.body, self.all = model.blocks[0], continuous == "all"
        self.ids, self.x = stacked(batch)["categorical"], value(stacked(batch)["continuous"])

    def rows(self, embedding, row):
        """The embedding of each field of one row."""
        if len(embedding.tables) > 1:
            return [value(t)[i] for t, i in zip(embedding.tables, self.ids[row], strict=True)]
        table, start, found = value(embedding.table), 0, []
        for size, i in zip(embedding.layout.fields.values(), self.ids[row], strict=True):
            found.append(table[start + i])
            start += size
        return found

    def linear(self, row):
        z = sum(w[0] for w in self.rows(self.body.wide, row))
        return z + (self.x[row] @ value(self.body.wide_dense.kernel)[:, 0] if self.all else 0.0)

    def hidden(self, row):
        h = np.concatenate([*self.rows(self.body.embedding, row), self.x[row]])
        for block in self.body.hidden:
            kernel, bias = block.trainable_variables
            h = np.maximum(h @ value(kernel) + value(bias), 0)
        return h

    def last(self, h):
        kernel, bias = self.body.logit.trainable_variables
        return h @ value(kernel)[:, 0] + value(bias)[0]

    def crossed(self, row):
        v = self.rows(self.body.embedding, row)
        return np.concatenate([*v, self.x[row]] if self.all else v)

    def wide_and_deep(self, row):
        return self.linear(row) + self.last(self.hidden(row))

    def deepfm(self, row):
        v = self.rows(self.body.embedding, row)
        pairs = sum(v[f] @ v[g] for f in range(len(v)) for g in range(f))
        return self.linear(row) + pairs + self.last(self.hidden(row))

    def dcn(self, row):
        x0 = x = self.crossed(row)
        for w, b in zip(self.body.cross.w, self.body.cross.b, strict=True):
            x = x0 * (x @ value(w)[:, 0]) + value(b) + x
        return self.with_cross(x, row)

    def dcnv2(self, row):
        x0 = x = self.crossed(row)
        for w, b in zip(self.body.cross.w, self.body.cross.b, strict=True):
            x = x0 * (value(w).T @ x + value(b)) + x
        return self.with_cross(x, row)

    def low_rank(self, row):
        cross = self.body.cross
        x0 = x = self.crossed(row)
        for factor, b in zip(cross.factors, cross.b, strict=True):
            u, c, v = (value(factor[k]) for k in "ucv")
            scores = x @ value(cross.gate)
            gates = np.exp(scores) / np.exp(scores).sum()
            total = np.zeros_like(x)
            for e in range(cross.experts):
                low = np.tanh(c[e] @ np.tanh(v[e].T @ x))
                total += gates[e] * x0 * (u[e] @ low + value(b))
            x = total + x
        return self.with_cross(x, row)

    def with_cross(self, x, row):
        z = self.last(np.concatenate([x, self.hidden(row)]))
        return z + self.linear(row) if self.all else z


@BOTH
@pytest.mark.parametrize("tables", ["fused", "per_field"])
@pytest.mark.parametrize("name", NAMES)
def test_logit_by_hand(tf, schema, batch, randomised, name, continuous, tables):
    model = randomised(MODELS[name](schema, continuous=continuous, tables=tables, **SMALL))
    hand = ByHand(model, batch, continuous)
    expected = [getattr(hand, name)(row) for row in range(40)]
    np.testing.assert_allclose(logits(model, stacked(batch)).numpy()[:, 0], expected, rtol=2e-5)
    probability = model(batch).numpy()[:, 0]
    np.testing.assert_allclose(probability, 1 / (1 + np.exp(-np.array(expected))), atol=1e-6)


@BOTH
def test_low_rank_experts_by_hand(schema, batch, randomised, continuous):
    model = cc.models.dcnv2(schema, low_rank=3, experts=2, continuous=continuous, **SMALL)
    hand = ByHand(randomised(model), batch, continuous)
    expected = [hand.low_rank(row) for row in range(40)]
    np.testing.assert_allclose(logits(model, batch).numpy()[:, 0], expected, rtol=2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_fused_and_per_field_start_from_the_same_numbers(schema, batch, name):
    fused, per_field = (
        MODELS[name](schema, tables=tables, **SMALL) for tables in ("fused", "per_field")
    )
    np.testing.assert_array_equal(logits(fused, batch), logits(per_field, batch))
    tables = [t.numpy() for t in per_field.blocks[0].embedding.tables]
    np.testing.assert_array_equal(fused.blocks[0].embedding.table.numpy(), np.concatenate(tables))


@pytest.mark.one_case
@pytest.mark.parametrize("name", ["deepfm", "dcnv2"])
def test_fused_and_per_field_train_to_the_same_numbers(tf, schema, batch, name):
    ends = []
    for tables in ("fused", "per_field"):
        model = MODELS[name](schema, tables=tables, **SMALL)
        model.compile(cc.CowClip(l2=1e-3), "binary_crossentropy")
        data = tf.data.Dataset.from_tensor_slices((batch, np.arange(40) % 2)).batch(8)
        model.fit(data, epochs=3, verbose=0)
        ends.append(logits(model, batch).numpy())
    np.testing.assert_allclose(*ends, atol=1e-6)


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
    model = MODELS[name](
        schema_of(fields, [f"I{i}" for i in range(13)]), continuous=continuous, seed=1
    )
    dense = [v for v in model.trainable_variables if "embeddings" not in v.name]
    assert sum(int(np.prod(v.shape)) for v in dense) == parameters


@pytest.mark.parametrize(("tables", "count", "entries"), [("fused", 1, 120), ("per_field", 3, 40)])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_tables_have_one_entry_per_occurrence(
    tf, schema, batch, name, tables, count, entries
):
    model = MODELS[name](schema, continuous="all", tables=tables, **SMALL)
    with tf.GradientTape() as tape:
        z = logits(model, stacked(batch), training=True)
    found = [v for v in model.trainable_variables if "embeddings" in v.name]
    assert sorted(v.shape[1] for v in found) == [1] * count + [4] * count
    for gradient in tape.gradient(z, found):
        assert isinstance(gradient, tf.IndexedSlices)
        assert gradient.values.shape[0] == entries


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
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
