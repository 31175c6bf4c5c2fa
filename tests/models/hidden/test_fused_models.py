"""When models use the operation for hidden layers, and that they train as with Keras's layers."""

import contextlib
import logging

import numpy as np
import pytest
from emulated_cublas import DRELU, PLAIN, RELU
from emulated_cupy import COMPILER
from exact_models import SMALL, clicks

import cowclip_merlin as cc
from cowclip_merlin.models import MODELS, attach
from cowclip_merlin.models.hidden.layers import computing_in

pytestmark = [pytest.mark.system, pytest.mark.skipif(COMPILER is None, reason="no g++ on PATH")]
FORWARD = ["relu+mask", "relu"]
STEP = [*FORWARD, "plain", "drelu", "plain", "plain"]


class Training:
    """A model with CowClip, and steps of it."""

    def __init__(self, tf, schema, name="deepfm", precision="float32", **settings):
        self.tf = tf
        with computing_in(precision):
            self.model = MODELS[name](schema, **(SMALL | {"mlp": (16, 8)} | settings))
        adam = tf.keras.optimizers.legacy.Adam
        self.optimizer = cc.CowClip(adam(1e-2), adam(1e-3), l2=1e-2, update="lazy")
        attach(self.model, self.optimizer)
        self.step = tf.function(self._step)
        self.loss_of = tf.keras.losses.BinaryCrossentropy()

    def _step(self, inputs, label):
        variables = self.model.trainable_variables
        with self.tf.GradientTape() as tape:
            loss = self.loss_of(label, self.model(inputs, training=True))
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    def train(self, steps=3):
        for rows in clicks(self.tf, 4 * steps):
            self.step(*rows)
        return self.weights()

    def weights(self):
        return [weight.numpy() for weight in self.model.trainable_variables]


def keras_only(monkeypatch):
    """Variables are where they are: on the CPU."""
    monkeypatch.setattr("cowclip_merlin.models.hidden.layers.gpu_of", lambda variable: None)


@pytest.mark.one_case
@pytest.mark.parametrize("refused", [0, RELU | DRELU])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["deepfm", "wide_and_deep", "dcnv2"])
def test_trains_as_keras(tf, schema, fake, monkeypatch, name, precision, refused):
    training = Training(tf, schema, name, precision)
    before = training.weights()
    training.train(steps=1)  # which checks the engine
    fake.reset(refuse=refused)
    ours = training.train()
    assert len(fake.products()) == 3 * len(STEP)
    keras_only(monkeypatch)
    other = Training(tf, schema, name, precision)
    other.train(steps=1)
    theirs = other.train()
    assert len(fake.products()) == 3 * len(STEP)
    # Without AVX-512, Keras rounds parts of a sum in bfloat16: an activation crosses 0, 0.13.
    bound = 1e-5 if precision == "float32" else 0.2
    for one, two, first in zip(ours, theirs, before, strict=True):
        way = np.linalg.norm(two - first)
        assert np.linalg.norm(one - two) <= bound * way + 1e-7


def test_a_step_takes_these_products(tf, schema, fake):
    training = Training(tf, schema)
    training.train(steps=1)
    fake.reset()
    training.train(steps=1)
    assert fake.products() == STEP


def test_towers_of_several_targets(tf, schema, fake, monkeypatch):
    from merlin.schema import ColumnSchema, Tags

    target = ColumnSchema("buy", dtype=np.int8, tags=[Tags.TARGET, Tags.BINARY_CLASSIFICATION])
    schema = schema + type(schema)([target])
    rows, _ = next(iter(clicks(tf)))
    found = []
    for _ in range(2):
        model = Training(tf, schema, multi_task="mmoe", mmoe_experts=2).model
        model.blocks[0].row_sync.cowclip = cc.CowClip()
        with tf.GradientTape() as tape:
            z = model.blocks[0](rows, training=True)
        found.append([z, *tape.gradient(z, [x.kernel for x in dense_layers(model, "towers")])])
        keras_only(monkeypatch)
    assert len([x for x in fake.products() if x == "drelu"]) >= 2
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def dense_layers(model, name="hidden"):
    blocks = getattr(model.blocks[0], name)
    blocks = [each for tower in blocks for each in tower] if name == "towers" else blocks
    return [block.layers[0].dense for block in blocks]


@pytest.mark.parametrize(
    "what", ["activation", "regularizer", "policy", "jit", "prediction", "other", "replicas"]
)
def test_keras_computes_what_the_operation_does_not(tf, schema, fake, what):
    precision = "float16" if what == "policy" else "float32"
    training = Training(tf, schema, precision=precision)
    block, layer = training.model.blocks[0], dense_layers(training.model)[0]
    if what == "activation":
        layer.activation = tf.keras.activations.tanh
    elif what == "regularizer":
        layer.activity_regularizer = tf.keras.regularizers.L2(1.0)
    elif what == "jit":
        block.jit_compile = True
    elif what == "other":
        block.row_sync.cowclip = None  # another optimizer trains
    rows = next(iter(clicks(tf)))[0]
    replicas = tf.distribute.OneDeviceStrategy("CPU:0") if what == "replicas" else None
    with replicas.scope() if replicas else contextlib.nullcontext():
        z = tf.function(lambda: block(rows, training=what != "prediction"))()
    assert np.isfinite(z).all() and fake.products() == []


@pytest.mark.parametrize(
    "wrong, words",
    [
        ("spoiled", "cuBLASLt differs in result by"),
        ("no algorithm", "cuBLASLt cannot compute a product"),
        ("compiler", "nvrtc: bad architecture"),
        ("missing", "libcublasLt.so.12 of NVIDIA's cuBLASLt was not found"),
        ("old", "cublasLtCreate of NVIDIA's cuBLASLt was not found"),
    ],
)
def test_without_a_right_result_keras_trains_and_one_line_says_why(
    tf, schema, fake, monkeypatch, caplog, wrong, words
):
    if wrong in ("spoiled", "no algorithm"):
        fake.reset(refuse=PLAIN if wrong == "no algorithm" else 0, spoil=wrong == "spoiled")
    elif wrong == "compiler":

        def fail(device):
            raise Exception("nvrtc: bad architecture\nline 2")  # as CuPy's, of no usual kind

        monkeypatch.setattr("cowclip_merlin.contrib.fused_mlp.load_kernels", fail)
    else:
        file = "/nowhere.so" if wrong == "missing" else "libm.so.6"
        monkeypatch.setattr("cowclip_merlin.contrib.fused_mlp.cublas_file", lambda: file)
    with caplog.at_level(logging.WARNING, "cowclip_merlin"):
        training = Training(tf, schema)
        training.train()
        checked = len(fake.products())
        training.train()
    assert len(fake.products()) == checked
    lines = [x.getMessage() for x in caplog.records if x.name == "cowclip_merlin"]
    assert len(lines) == 1 and lines[0].startswith(f"slower hidden layers on the GPU: {words}")


def test_what_is_saved_has_no_such_operation(tf, schema, fake, tmp_path):
    training = Training(tf, schema)
    training.train(steps=1)
    training.model.save(str(tmp_path / "model"))
    assert b"CowClipMlp" not in (tmp_path / "model/saved_model.pb").read_bytes()
