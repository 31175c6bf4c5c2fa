"""The gradients of a step: layers and lookups apart give those of one tape around both."""

import numpy as np
import pytest
from one_step import Recorder
from table_schemas import schema_of_tables
from tiers import thorough

import cowclip_merlin as cc
from cowclip_merlin import compat
from cowclip_merlin.batch import Ids
from cowclip_merlin.models import Architecture
from cowclip_merlin.models.base import ClickModel, assemble
from cowclip_merlin.models.hidden.layers import computing_in
from cowclip_merlin.models.multi_task import losses_of
from cowclip_merlin.online.training.trainer import BatchForm
from cowclip_merlin.training.train_step import make_train_step

ROWS, FIELDS = 24, {"item": 7, "user": 5, "seen": 7}  # seen is a list of items
SMALL = {"embedding_dim": 4, "mlp": (6, 5), "seed": 3, "init_std": 0.3}
CASES = {
    "din": ("din", {}),
    "wide_and_deep": ("wide_and_deep", {"tables": "per_field"}),
    "deepfm": ("deepfm", {"continuous": "all"}),
    "deepfm, partly frozen": ("deepfm", {"freeze_embeddings": ("user",)}),
    "deepfm, sharded": ("deepfm", {"tables": "sharded"}),
    "deepfm, growing": ("deepfm", {"tables": "growing", "capacity": 20}),
    "deepfm, no lists": ("deepfm", {"lists": ()}),
    "dcn": ("dcn", {}),
    "dcn, per_field frozen": ("dcn", {"tables": "per_field", "freeze_embeddings": ("user",)}),
    "dcnv2": ("dcnv2", {"continuous": "all", "low_rank": 2, "experts": 2}),
}
USUAL = ("din", "wide_and_deep", "deepfm, partly frozen", "deepfm, growing", "dcnv2")


def built(name, lists=("seen",), **settings):
    tables = {} if settings.get("tables") == "growing" else {"seen": "item"}
    schema = schema_of_tables(FIELDS, tables=tables, lists=lists, continuous=["x", "y"])
    model = getattr(cc.models, name)(schema, **(SMALL | settings))
    if settings.get("tables") == "growing":
        model.row_sync.refuse_without_table = lambda: None  # the rows of a batch are given here
    return randomised(model)


def randomised(model):
    rng = np.random.default_rng(1)
    for variable in model.variables:
        variable.assign(rng.normal(0, 0.3, variable.shape))
    return model


def batch_of(lists, *, targets=1, more=()):
    """The form of a batch, and a batch: rows, numbers, labels, then offsets and weights."""
    rng = np.random.default_rng(2)
    lengths = np.ones([ROWS, 3], np.int32)
    lengths[:, 2] = rng.integers(0, 4, ROWS) if lists else 1
    sizes = np.tile([*FIELDS.values()], ROWS).repeat(lengths.reshape(-1))
    values = rng.integers(0, sizes).astype(np.int32)
    ids = Ids(values, lengths) if lists else values.reshape(ROWS, 3)
    labels = rng.integers(0, 2, [ROWS, targets]).astype(np.float32)
    columns = [rng.random([ROWS, 2], np.float32), labels if targets > 1 else labels[:, 0]]
    columns += [rng.random(ROWS, np.float32) for _ in more]
    kinds = {f"has_{name}": True for name in more}
    form = BatchForm(3, 2, multi_valued=bool(lists), num_targets=targets, **kinds)
    return form, (ids, *columns)


def of_one_tape(tf, model, form, packed):
    """The loss and the gradients, from one tape around lookups, layers and loss."""
    batch = form.unpack(tf.nest.map_structure(tf.constant, packed))
    targets = model.blocks[0].columns.targets

    @tf.function(autograph=False)
    def compute():
        with tf.GradientTape() as tape:
            z = cc.models.logits(model, batch, training=True)
            z = z[:, 0] if len(targets) == 1 else z
            z = z if batch.offsets is None else z - batch.offsets
            losses = losses_of(targets, {})(batch.labels, z)
            losses = losses if batch.weights is None else losses * batch.weights
            count = ROWS if batch.weights is None else tf.reduce_sum(batch.weights)
            loss = tf.reduce_sum(losses) / count
        return tf.reduce_sum(losses), tape.gradient(loss, model.trainable_variables)

    loss, gradients = compute()
    slices = [isinstance(g, tf.IndexedSlices) for g in gradients]
    return float(loss), [as_array(g) for g in gradients], slices


def as_array(gradient):
    return gradient if gradient is None else compat.tensorflow().convert_to_tensor(gradient).numpy()


def of_a_step(tf, model, form, packed):
    recorder, loss_sum = Recorder(model), tf.Variable(0.0, dtype=tf.float64)
    step = make_train_step(model, recorder, form, loss_sum)
    step(packed)
    graph = step.get_concrete_function().graph.as_graph_def()
    calls = [node for node in graph.node if node.attr["_XlaMustCompile"].b]
    assert len(calls) == model.blocks[0].jit_compile
    return float(loss_sum.numpy()), recorder.found, recorder.slices


def check(tf, model, form, packed, rtol=1e-5, atol=1e-8):
    """Compare a step with one tape; return the gradients by the names of the weights."""
    loss, expected, slices = of_one_tape(tf, model, form, packed)
    own_loss, found, own_slices = of_a_step(tf, model, form, packed)
    assert own_loss == pytest.approx(loss, rel=1e-6) and own_slices == slices and any(slices)
    names = [variable.name for variable in model.trainable_variables]
    for name, a, b in zip(names, found, expected, strict=True):
        assert (a is None) == (b is None), name
        if a is not None:
            np.testing.assert_allclose(a, b, rtol, atol, err_msg=name)
    return dict(zip(names, found))


@pytest.fixture(scope="module")
def tf():
    return compat.tensorflow()


@pytest.mark.parametrize("case", [each if each in USUAL else thorough(each) for each in CASES])
def test_gradients_are_those_of_one_tape(tf, case):
    name, settings = CASES[case]
    form, packed = batch_of(settings.get("lists", ("seen",)))
    found = check(tf, built(name, **settings), form, packed)
    assert all(g.any() for g in found.values())


@pytest.mark.parametrize("more", [("offsets",), ("offsets", "weights")])
def test_offsets_and_weights_enter_the_gradients(tf, more):
    check(tf, built("deepfm"), *batch_of(True, more=more))


@pytest.mark.parametrize(("name", "how"), [("deepfm", "shared_bottom"), ("din", "mmoe")])
def test_several_targets(tf, name, how):
    schema = schema_of_tables(FIELDS, tables={"seen": "item"}, lists=("seen",), continuous="xy")
    model = getattr(cc.models, name)(several(schema), multi_task=how, **SMALL)
    form, packed = batch_of(True, targets=2, more=("weights",))
    packed[2][3, 1] = np.nan  # without this label
    check(tf, randomised(model), form, packed)


def several(schema):
    """The schema with a second label, a number."""
    from merlin.schema import ColumnSchema, Schema, Tags

    more = ColumnSchema("seconds", dtype=np.float32, tags=[Tags.TARGET, Tags.REGRESSION])
    return Schema([*schema, more])


@pytest.mark.parametrize("name", ["deepfm", thorough("din")])
def test_xla_compiles_one_call(tf, name):
    """It holds layers, loss and backward pass; as in `of_a_step`, which counts the calls."""
    model = built(name)
    model.blocks[0].jit_compile = True
    check(tf, model, *batch_of(True, more=("weights",)), rtol=1e-4, atol=1e-6)


def test_hidden_layers_in_bfloat16(tf):
    with computing_in("bfloat16"):
        model = built("deepfm")
    assert model.blocks[0].hidden[0].layers[0].compute_dtype == "bfloat16"
    check(tf, model, *batch_of(True))


class Own(ClickModel):
    """Its lookups and its layers share a weight, and no layer reads the id weights."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.add_linear()
        self.scale = self.add_weight("scale", [], initializer="ones")

    def combine(self, found, ids):
        return self.scale * super().combine(found, ids)

    def forward(self, features):
        return self.scale * self.logit(self.mlp(features.flat))


def test_a_model_of_ones_own(tf):
    schema = schema_of_tables(FIELDS, tables={"seen": "item"}, lists=("seen",), continuous="xy")
    model = randomised(assemble(Own, schema, Architecture(**SMALL)))
    form, packed = batch_of(True)
    found = check(tf, model, form, packed)
    absent = [name for name, gradient in found.items() if gradient is None]
    assert absent and all("wide" in name for name in absent)
    assert any("scale" in name for name in found)
