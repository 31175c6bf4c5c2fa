"""The five models as Merlin models: fit, evaluate, predict, save, load, and what is refused."""

import subprocess
import sys
import warnings

import numpy as np
import pytest
from by_hand import SMALL, SOME, for_task, list_batch, list_schema

import cowclip_merlin as cc
from cowclip_merlin.errors import InputError
from cowclip_merlin.models import MODELS, logits
from cowclip_merlin.models.multi_task import losses_of

NAMES = sorted({*MODELS} - {"din"})  # it needs lists: tests/models/test_din.py


def test_a_saturated_sigmoid_keeps_its_gradient(tf, schema, batch):
    model = cc.models.deepfm(schema, **SMALL)
    model.blocks[0].logit.bias.assign([40.0])
    with tf.GradientTape() as tape:
        loss = tf.keras.losses.BinaryCrossentropy()(tf.zeros([40, 1]), model(batch, training=True))
    gradient = tape.gradient(loss, model.blocks[0].logit.bias)
    assert gradient.numpy()[0] == pytest.approx(1.0, abs=1e-6)
    assert loss.numpy() == pytest.approx(logits(model, batch).numpy().mean(), rel=1e-6)
    assert loss.numpy() > 39


@pytest.fixture(scope="session")
def labels(batch):
    rng, click = np.random.default_rng(2), (batch["a"] < 3).astype(np.float32)
    buy = np.where(rng.random([40, 1]) < 0.3, np.nan, click * (batch["b"] < 3)).astype(np.float32)
    seconds = np.where(click == 1, batch["c"], np.nan).astype(np.float32)
    return {"click": click, "buy": buy, "seconds": seconds}


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("name", "how", "eager"),
    [
        ("deepfm", "mmoe", False),
        ("dcnv2", None, False),
        ("dcn", "shared_bottom", False),
        ("wide_and_deep", "esmm", False),
        ("deepfm", None, True),
    ],
)
def test_fit_evaluate_predict(tf, schema, batch, labels, name, how, eager):
    model = MODELS[name](for_task(schema, how), multi_task=how, **SMALL)
    model.compile(cc.CowClip("adam", "adam"), run_eagerly=eager)
    targets = model.blocks[0].columns.targets
    own = {target.name: labels[target.name] for target in targets}
    data = tf.data.Dataset.from_tensor_slices((batch, own if how else own["click"])).batch(8)
    losses = model.fit(data, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    found, z = model.evaluate(data, verbose=0, return_dict=True), logits(model, batch)
    table = np.concatenate([*own.values()], axis=1)
    each = losses_of(targets, {})(tf.constant(table), z)
    assert found["loss"] == pytest.approx(float(tf.reduce_mean(each)), rel=1e-5)
    assert 0 < found["buy/binary_target/auc" if how else "auc"] <= 1
    predicted = model.predict(data.map(lambda x, y: x), verbose=0)
    click = predicted["click/binary_target"] if how else predicted
    np.testing.assert_allclose(click, tf.sigmoid(z[:, :1]), atol=1e-6)


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


HIDDEN = {"activation": "dice", "dropout": 0.4, "batch_norm": True}
SAVED = {  # precision, and how the model is made
    "deepfm": (None, {"multi_task": "esmm"}),
    "dcn": (None, {"tables": "per_field", "continuous": "all"} | HIDDEN),
    "dcnv2": (
        "mixed_float16",
        {"multi_task": "mmoe", "low_rank": 2, "freeze_embeddings": ["tags"]},
    ),
    "din": (None, {"attention_mlp": (5,)}),
}
LOAD = """
import sys
import numpy as np
import cowclip_merlin as cc
from cowclip_merlin import compat
from cowclip_merlin.batch import Batch, Ids

tf, folder = compat.tensorflow(), sys.argv[1]
rows = np.load(f"{folder}/rows.npz")
batch = Batch(Ids(rows["values"], rows["lengths"]), rows["numbers"])
for name in sys.argv[2:]:
    model = cc.load_model(f"{folder}/{name}")
    found = cc.models.logits(model, batch).numpy()
    np.testing.assert_allclose(found, np.load(f"{folder}/{name}.npy"), rtol=1e-6, atol=1e-6)
    columns = model.blocks[0].columns
    assert columns.tables == {c: "item" for c in ("item", "clicked", "bought")}, columns
print("equal")
"""


@pytest.mark.system
def test_saved_and_loaded_in_a_new_process(tf, tmp_path, randomised):
    """With lists, shared and frozen tables, towers, all kinds of hidden layers, half precision."""
    rows = list_batch(SOME)
    arrays = {"values": rows.ids.values, "lengths": rows.ids.lengths, "numbers": rows.numbers}
    np.savez(tmp_path / "rows.npz", **arrays)
    for name, (precision, more) in SAVED.items():
        tf.keras.mixed_precision.set_global_policy(precision or "float32")
        try:
            schema = for_task(list_schema(), more.get("multi_task"))
            model = randomised(MODELS[name](schema, **more, **SMALL))
            before = logits(model, rows).numpy()
            logits(model, rows, training=True)  # moves the statistics
            np.save(tmp_path / f"{name}.npy", logits(model, rows))
            assert (np.load(tmp_path / f"{name}.npy") != before).any() == ("batch_norm" in more)
            model.save(str(tmp_path / name))
        finally:
            tf.keras.mixed_precision.set_global_policy("float32")
    command = [sys.executable, "-c", LOAD, str(tmp_path), *SAVED]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.endswith("equal\n"), done.stderr[-3000:]


def test_without_continuous_columns(schema_of, batch):
    for name in NAMES:
        model = MODELS[name](schema_of(continuous=()), continuous="all", **SMALL)
        assert logits(model, batch).shape == (40, 1)


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
