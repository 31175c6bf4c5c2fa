"""Models with several targets: logits by hand in NumPy, losses, life in Merlin, refusals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_din import SOME, batch_of, din_schema
from test_logits import ByHand, value

import cowclip_merlin as cc
from cowclip_merlin.errors import InputError
from cowclip_merlin.models import MODELS, Columns, logits
from cowclip_merlin.models.multi_task import losses_of, of_both
from cowclip_merlin.targets import Target

SMALL = {"embedding_dim": 4, "mlp": (6, 5), "seed": 3}
NAMES = sorted({*MODELS} - {"din"})  # it needs lists: see DinByHand
WAYS = ("shared_bottom", "mmoe", "esmm")
NUMBERS = {"seconds"}


def of_targets(schema, *targets):
    """The schema with these labels in place of its own."""
    from merlin.schema import ColumnSchema, Schema, Tags

    kinds = {
        name: Tags.REGRESSION if name in NUMBERS else Tags.BINARY_CLASSIFICATION for name in targets
    }
    labels = [
        ColumnSchema(name, dtype=np.float32, tags=[Tags.TARGET, kind])
        for name, kind in kinds.items()
    ]
    return Schema([*schema.excluding_by_name(["click"]), *labels])


def schema_for(schema, how):
    names = ("click", "buy") if how == "esmm" else ("click", "buy", "seconds")
    return of_targets(schema, *names)


class ByHandOfTarget(ByHand):
    """A target's logit in NumPy float64, row by row, before ESMM's product."""

    def __init__(self, model, batch, continuous, target):
        super().__init__(model, batch, continuous)
        self.target, self.how = target, self.body.architecture.multi_task

    def linear(self, row):
        z = sum(w[0] for w in self.rows(self.body.wide[self.target], row))
        kernel = value(self.body.wide_dense.kernel)[:, self.target] if self.all else 0.0
        return z + (self.x[row] @ kernel if self.all else 0.0)

    def tower(self, layers, row):
        h = np.concatenate([*self.rows(self.body.embedding, row), self.x[row]])
        for block in layers:
            kernel, bias = block.trainable_variables
            h = np.maximum(h @ value(kernel) + value(bias), 0)
        return h

    def hidden(self, row):
        """Ma et al., KDD 2018, equations 5 to 7: the experts, weighted by the target's gate."""
        if self.how == "shared_bottom":
            return super().hidden(row)
        if self.how == "esmm":
            return self.tower(self.body.towers[self.target], row)
        experts = [self.tower(layers, row) for layers in self.body.towers]
        x = np.concatenate([*self.rows(self.body.embedding, row), self.x[row]])
        n = len(experts)
        scores = x @ value(self.body.gates.kernel)[:, self.target * n : (self.target + 1) * n]
        gate = [np.exp(score) / sum(np.exp(s) for s in scores) for score in scores]
        return sum(share * expert for share, expert in zip(gate, experts))

    def last(self, h):
        if self.how == "shared_bottom":
            kernel, bias = self.body.logit.trainable_variables
            return h @ value(kernel)[:, self.target] + value(bias)[self.target]
        return h @ value(self.body.logit.w)[self.target] + value(self.body.logit.b)[self.target]

    def deepfm(self, row):
        v = self.rows(self.body.embedding, row)
        weights = value(self.body.fm.kernel)[:, self.target]
        pairs = sum((weights * v[f]) @ v[g] for f in range(len(v)) for g in range(f))
        return self.linear(row) + pairs + self.last(self.hidden(row))


@pytest.mark.parametrize("continuous", ["deep", "all"])
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_logits_by_hand(schema, batch, randomised, name, how, continuous):
    schema = schema_for(schema, how)
    model = randomised(
        MODELS[name](schema, multi_task=how, mmoe_experts=3, continuous=continuous, **SMALL)
    )
    found = logits(model, batch).numpy()
    targets = range(2 if how == "esmm" else 3)
    by_hand = [ByHandOfTarget(model, batch, continuous, target) for target in targets]
    expected = np.array([[getattr(each, name)(row) for each in by_hand] for row in range(40)])
    if how == "esmm":
        p = np.prod(1 / (1 + np.exp(-expected)), axis=1)  # Ma et al., SIGIR 2018, equation 1
        expected[:, 1] = np.log(p / (1 - p))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


class DinByHand(ByHandOfTarget):
    """What follows the combined embeddings of DIN, which tests/models/test_din.py checks."""

    def __init__(self, model, batch, target):
        self.body, self.x, self.all = model.blocks[0], value(batch.numbers), False
        self.target, self.how = target, self.body.architecture.multi_task
        self.v = value(self.body.look_up(self.body.columns.stack(batch)[0])[0])

    def rows(self, embedding, row):
        return list(self.v[row])


@pytest.mark.one_case
@pytest.mark.parametrize("how", WAYS)
def test_din_has_a_logit_for_each_target(tf, randomised, how):
    model = cc.models.din(schema_for(din_schema(), how), multi_task=how, mmoe_experts=3, **SMALL)
    randomised(model)
    batch, targets = batch_of(SOME), model.blocks[0].columns.targets
    by_hand = [DinByHand(model, batch, target) for target in range(len(targets))]
    z = np.array([[each.last(each.hidden(row)) for each in by_hand] for row in range(len(SOME))])
    expected = of_both(z).numpy() if how == "esmm" else z
    np.testing.assert_allclose(logits(model, batch), expected, rtol=1e-4, atol=1e-4)
    labels = tf.constant([[1.0, 0.0, 3.0], [0.0, np.nan, np.nan], [1.0, 1.0, 2.0]])
    optimizer, found = cc.CowClip(), []
    cc.models.attach(model, optimizer)
    for _ in range(30):
        with tf.GradientTape() as tape:
            own = logits(model, batch, training=True)
            loss = tf.reduce_mean(losses_of(targets, {})(labels[:, : len(targets)], own))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(list(zip(gradients, model.trainable_variables)))
        found.append(float(loss))
    assert found[-1] < found[0]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.floats(-30, 30), st.floats(-30, 30)), min_size=1, max_size=5))
def test_esmm_multiplies_probabilities(pairs):
    z = np.array(pairs)
    p = 1 / (1 + np.exp(-z))
    found = of_both(z).numpy()
    np.testing.assert_array_equal(found[:, 0], z[:, 0])
    np.testing.assert_allclose(1 / (1 + np.exp(-found[:, 1])), p[:, 0] * p[:, 1], rtol=1e-9)


def test_esmm_has_gradients_where_probabilities_saturate(tf):
    z = tf.Variable([[200.0, -300.0], [-300.0, 200.0], [400.0, 400.0], [0.0, 0.0]])
    with tf.GradientTape() as tape:
        both = of_both(z)
        second = both[:, 1]
    gradient = tape.gradient(second, z).numpy()
    assert np.isfinite(both.numpy()).all() and np.isfinite(gradient).all()
    np.testing.assert_allclose(gradient[:2], [[0, 1], [1, 0]], atol=1e-6)


LABELS = st.sampled_from([0.0, 1.0, float("nan")])
NUMBER = st.sampled_from([float("nan"), -3.5, 0.0, 1e3])


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(LABELS, NUMBER, LABELS, *[st.floats(-20, 20)] * 3), min_size=1, max_size=6)
)
def test_losses_of_labels_by_hand(rows):
    """Each label adds its loss; a missing one adds 0, also to the gradient."""
    from cowclip_merlin import compat

    tf = compat.tensorflow()
    table = np.array(rows)
    labels, z = table[:, :3], tf.Variable(table[:, 3:])
    with tf.GradientTape() as tape:
        found = losses_of([Target("a"), Target("t", True), Target("b")], {})(tf.constant(labels), z)
    losses, gradient = np.zeros(len(rows)), np.zeros((len(rows), 3))
    for i, row in enumerate(rows):
        for j, (y, x) in enumerate(zip(row[:3], row[3:])):
            if y == y and j == 1:
                losses[i], gradient[i, j] = losses[i] + (x - y) ** 2, 2 * (x - y)
            elif y == y:
                p = 1 / (1 + np.exp(-x))
                losses[i] += -np.log(p if y else 1 - p)
                gradient[i, j] = p - y
    np.testing.assert_allclose(found, losses, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(tape.gradient(found, z), gradient, rtol=1e-6, atol=1e-12)


@pytest.fixture
def labels(batch):
    rng, click = np.random.default_rng(2), (batch["a"] < 3).astype(np.float32)
    buy = np.where(rng.random([40, 1]) < 0.3, np.nan, click * (batch["b"] < 3)).astype(np.float32)
    seconds = np.where(click == 1, batch["c"], np.nan).astype(np.float32)
    return {"click": click, "buy": buy, "seconds": seconds}


@pytest.mark.one_case
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_all_models_learn_by_fit(tf, schema, batch, labels, name, how):
    schema = schema_for(schema, how)
    model = MODELS[name](schema, multi_task=how, **SMALL)
    model.compile(cc.CowClip("adam", "adam"))
    own = {name: labels[name] for name in schema.column_names if name in labels}
    data = tf.data.Dataset.from_tensor_slices((batch, own)).batch(8)
    history = model.fit(data, epochs=4, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    found = model.evaluate(data, verbose=0, return_dict=True)
    z = logits(model, batch)
    table = np.concatenate([own[target] for target, _ in model.blocks[0].columns.targets], axis=1)
    losses = losses_of(model.blocks[0].columns.targets, {})(tf.constant(table), z)
    assert found["loss"] == pytest.approx(float(tf.reduce_mean(losses)), rel=1e-5)
    assert 0 < found["buy/binary_target/auc"] <= 1


@pytest.mark.one_case
@pytest.mark.parametrize("how", WAYS)
def test_a_saved_model_gives_the_same(tf, schema, batch, how, tmp_path, randomised):
    model = randomised(MODELS["deepfm"](schema_for(schema, how), multi_task=how, **SMALL))
    model.save(str(tmp_path / "model"))
    loaded = cc.load_model(str(tmp_path / "model"))
    expected = model(batch)
    assert "click/binary_target" in expected
    for name, found in loaded(batch).items():
        np.testing.assert_array_equal(found, expected[name])
    for found in expected.values():
        assert found.shape == (40, 1)


@pytest.mark.parametrize("tables", ["per_field", "sharded"])
def test_other_tables_start_from_the_same_numbers(schema, batch, tables):
    given = {"multi_task": "mmoe", "init_std": 0.5, **SMALL}
    models = (
        cc.models.deepfm(schema_for(schema, "mmoe"), tables=each, **given)
        for each in ("fused", tables)
    )
    np.testing.assert_allclose(*(logits(model, batch) for model in models), rtol=1e-6)


def test_clips_leave_the_linear_part_of_each_target_out(schema):
    model, optimizer = (
        cc.models.deepfm(schema_for(schema, "mmoe"), multi_task="mmoe", **SMALL),
        cc.CowClip(),
    )
    cc.models.attach(model, optimizer)
    tables = [v for v in model.trainable_variables if "embeddings" in v.name]
    assert [optimizer.tables.skips(table) for table in tables] == [False, True, True, True]


def test_half_precision(tf, schema, batch):
    from cowclip_merlin.models.hidden.layers import computing_in

    for how in WAYS:
        with computing_in("bfloat16"):
            model = cc.models.dcnv2(schema_for(schema, how), multi_task=how, **SMALL)
        assert logits(model, batch).dtype == tf.float32
        exact = cc.models.dcnv2(schema_for(schema, how), multi_task=how, **SMALL)
        np.testing.assert_allclose(logits(model, batch), logits(exact, batch), atol=0.05)


def test_without_multi_task_the_first_target_counts(schema, batch):
    model = cc.models.dcn(schema_for(schema, "mmoe"), **SMALL)
    assert model(batch).shape == (40, 1) and model.blocks[0].columns.more_targets == ()
    one = cc.models.dcn(schema, **SMALL)
    np.testing.assert_array_equal(model(batch), one(batch))
    assert Columns.from_schema(schema_for(schema, "mmoe")) == Columns.from_schema(schema)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"multi_task": "towers"}, "multi_task"),
        ({"multi_task": "mmoe", "mmoe_experts": 0}, "mmoe_experts is 0; it must be at least 1"),
        ({"multi_task": "esmm"}, "esmm needs two labels of 0 and 1"),
    ],
)
def test_refused(schema, given, message):
    with pytest.raises(InputError, match=message):
        cc.models.dcn(schema_for(schema, "mmoe"), **SMALL, **given)
