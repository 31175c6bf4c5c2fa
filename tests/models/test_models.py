"""The four models of the paper: half precision, life as a Merlin model, and what is refused."""

import subprocess
import sys
import warnings

import numpy as np
import pytest

import cowclip_merlin as cc
from cowclip_merlin.errors import InputError
from cowclip_merlin.models import MODELS, logits

SMALL = {"embedding_dim": 4, "mlp": (6, 5), "seed": 3}
NAMES = sorted({*MODELS} - {"din"})  # it needs lists: tests/models/test_din.py


@pytest.fixture
def half_precision(tf):
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    yield
    tf.keras.mixed_precision.set_global_policy("float32")


@pytest.mark.parametrize("name", NAMES)
def test_mixed_precision_keeps_logits_and_tables_in_float32(
    tf, schema, batch, name, half_precision
):
    model = MODELS[name](schema, continuous="all", **(SMALL | {"init_std": 0.5}))
    tf.keras.mixed_precision.set_global_policy("float32")
    exact = MODELS[name](schema, continuous="all", **(SMALL | {"init_std": 0.5}))
    with tf.GradientTape() as tape:
        z = tf.function(lambda rows: logits(model, rows, training=True))(batch)
    assert z.dtype == model(batch).dtype == tf.float32
    np.testing.assert_allclose(z, logits(exact, batch), rtol=0.02, atol=0.02)
    assert (z.numpy() != logits(exact, batch).numpy()).any()  # the hidden layers are in half
    found = [v for v in model.trainable_variables if "embeddings" in v.name]
    for gradient in tape.gradient(z, found):
        assert isinstance(gradient, tf.IndexedSlices) and gradient.values.dtype == tf.float32


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["dcnv2"])
def test_a_saved_model_computes_in_the_precision_it_was_made_for(
    tf, schema, batch, name, half_precision, tmp_path
):
    model = MODELS[name](schema, **(SMALL | {"init_std": 0.5}))
    model.save(str(tmp_path / "model"))
    tf.keras.mixed_precision.set_global_policy("float32")
    loaded = cc.load_model(str(tmp_path / "model"))
    assert tf.keras.mixed_precision.global_policy().name == "float32"
    np.testing.assert_array_equal(loaded(batch), model(batch))
    in_float32 = MODELS[name](schema, **(SMALL | {"init_std": 0.5}))
    assert (in_float32(batch).numpy() != model(batch).numpy()).any()


def test_a_saturated_sigmoid_keeps_its_gradient(tf, schema, batch):
    model = cc.models.deepfm(schema, **SMALL)
    model.blocks[0].logit.bias.assign([40.0])
    with tf.GradientTape() as tape:
        loss = tf.keras.losses.BinaryCrossentropy()(tf.zeros([40, 1]), model(batch, training=True))
    gradient = tape.gradient(loss, model.blocks[0].logit.bias)
    assert gradient.numpy()[0] == pytest.approx(1.0, abs=1e-6)
    assert loss.numpy() == pytest.approx(logits(model, batch).numpy().mean(), rel=1e-6)
    assert loss.numpy() > 39


@pytest.mark.one_case
@pytest.mark.parametrize(("name", "eager"), [*((name, False) for name in NAMES), ("deepfm", True)])
def test_fit_evaluate_predict(tf, schema, batch, name, eager):
    model = MODELS[name](schema, **SMALL)
    model.compile(
        cc.CowClip("adam", "adam"), "binary_crossentropy", metrics=["auc"], run_eagerly=eager
    )
    click = (batch["a"][:, 0] < 3).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices((batch, click)).batch(8)
    losses = model.fit(data, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert model.evaluate(data, verbose=0, return_dict=True)["loss"] > 0
    assert model.predict(data.map(lambda x, y: x), verbose=0).shape == (40, 1)


@pytest.mark.one_case
def test_class_weights_of_fit_are_weights_of_the_rows(tf, schema, batch):
    click = (batch["a"][:, :1] < 3).astype(np.float32)
    given, losses = np.where(click == 1, 5, 1).astype(np.float32), []
    for rows, more in (((), {"class_weight": {0: 1.0, 1: 5.0}}), ((given,), {}), ((), {})):
        model = MODELS["deepfm"](schema, **SMALL)
        model.compile(cc.CowClip("adam", "adam", update="exact"), "binary_crossentropy")
        data = tf.data.Dataset.from_tensor_slices((batch, click, *rows)).batch(8)
        losses.append(model.fit(data, epochs=2, verbose=0, **more).history["loss"])
    assert losses[0] == losses[1] and losses[0][0] > losses[2][0]


def test_a_merlin_loader_batch_and_a_tf_data_batch_agree(tf, schema, batch, tmp_path):
    import pandas as pd
    from merlin.io import Dataset
    from merlin.models.tf import Loader

    frame = pd.DataFrame({name: values[:, 0] for name, values in batch.items()})
    frame["click"] = np.arange(40) % 2
    frame.to_parquet(tmp_path / "part.parquet")
    loader = Loader(
        Dataset(str(tmp_path), engine="parquet", schema=schema), batch_size=16, shuffle=False
    )
    model = cc.models.deepfm(schema, **SMALL)
    model.compile(cc.CowClip(), "binary_crossentropy")
    model.fit(loader, epochs=1, verbose=0)
    shuffled = Loader(loader.dataset, batch_size=16)
    with pytest.warns(UserWarning, match="this loader shuffles, so prediction i is not that of"):
        model.predict(shuffled, verbose=0)
    slices = tf.data.Dataset.from_tensor_slices(batch).batch(16)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        found = model.predict(loader, verbose=0)
    np.testing.assert_allclose(found, model.predict(slices, verbose=0), atol=1e-7)


LOAD = """
import sys
import numpy as np
import cowclip_merlin as cc
from cowclip_merlin import compat

tf, folder = compat.tensorflow(), sys.argv[1]
batch = dict(np.load(f"{folder}/batch.npz"))
data = tf.data.Dataset.from_tensor_slices(batch).batch(40)
for name in sys.argv[2:]:
    model = cc.load_model(f"{folder}/{name}")
    assert (model.predict(data, verbose=0) == np.load(f"{folder}/{name}.npy")).all(), name
print("equal")
"""


@pytest.mark.system
def test_saved_and_loaded_in_a_new_process(tf, schema, batch, tmp_path):
    names = ("deepfm", "dcnv2")
    data = tf.data.Dataset.from_tensor_slices((batch, np.arange(40) % 2)).batch(40)
    np.savez(tmp_path / "batch.npz", **batch)
    for name in names:
        model = MODELS[name](schema, continuous="all", **SMALL)
        model.compile(cc.CowClip(), "binary_crossentropy")
        model.train_on_batch(*next(iter(data)))
        np.save(tmp_path / f"{name}.npy", model.predict(data.map(lambda x, y: x), verbose=0))
        model.save(str(tmp_path / name))
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(tmp_path), *names], capture_output=True, text=True
    )
    assert done.stdout.endswith("equal\n"), done.stderr[-3000:]


@pytest.mark.parametrize("name", NAMES)
def test_weights_saved_and_loaded(schema, batch, tmp_path, name):
    model, other = (MODELS[name](schema, **(SMALL | {"seed": s})) for s in (1, 2))
    assert (logits(model, batch).numpy() != logits(other, batch).numpy()).all()
    model.save_weights(str(tmp_path / "weights"))
    other.load_weights(str(tmp_path / "weights"))
    np.testing.assert_array_equal(logits(model, batch), logits(other, batch))


def test_without_continuous_columns(schema_of, batch):
    for name in NAMES:
        model = MODELS[name](schema_of(continuous=()), continuous="all", **SMALL)
        assert logits(model, batch).shape == (40, 1)


def test_an_id_beyond_the_table_raises_on_the_cpu(tf, schema, batch):
    wrong = batch | {"c": np.full([40, 1], 100)}
    with tf.device("CPU"), pytest.raises(tf.errors.InvalidArgumentError):
        logits(cc.models.deepfm(schema, **SMALL), wrong)


def test_wrong_schemas_are_named(schema):
    from merlin.schema import ColumnSchema, Schema, Tags

    with pytest.raises(InputError, match="TARGET"):
        cc.models.deepfm(schema.excluding_by_name(["click"]))
    with pytest.raises(InputError, match="CATEGORICAL"):
        cc.models.deepfm(schema.select_by_name(["x", "click"]))
    bare = Schema([ColumnSchema("a", tags=[Tags.CATEGORICAL]), *schema.select_by_name("click")])
    with pytest.raises(InputError, match="'a' has no integer domain"):
        cc.models.deepfm(bare)


def test_on_a_gpu_no_ids_go_through_the_host(tf, schema, monkeypatch):
    """TensorFlow's int32 arithmetic is in the host's memory: there ids must be int64 at once."""

    def types_of_ids(gpus):
        monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind=None: gpus)
        model = MODELS["deepfm"](schema, **SMALL)
        ids = tf.TensorSpec([None, 3], tf.int32)
        traced = tf.function(
            lambda ids, x: logits(model, {"categorical": ids, "continuous": x})
        ).get_concrete_function(ids, tf.TensorSpec([None, 2]))
        used = [x for op in traced.graph.get_operations() if op.type != "Cast" for x in op.inputs]
        return {x.dtype for x in used if x.dtype.is_integer and x.shape[1:] == [3]}

    assert types_of_ids([]) == {tf.int32} and types_of_ids(["GPU:0"]) == {tf.int64}
