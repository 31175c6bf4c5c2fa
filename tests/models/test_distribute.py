"""The four models made in the scope of a strategy: two replicas end where one does."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("all_threads")

SCRIPT = """
import sys
import numpy as np
import cowclip_merlin as cc
from cowclip_merlin import compat
from cowclip_merlin.errors import InputError

sys.path.insert(0, sys.argv[1])
from conftest import FIELDS, make_schema

tf = compat.tensorflow()
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_visible_devices([], "GPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
rng = np.random.default_rng(1)
rows = {name: rng.integers(0, size, [160, 1]) for name, size in FIELDS.items()}
rows |= {name: rng.random([160, 1]).astype("f") for name in ("x", "y")}
data = tf.data.Dataset.from_tensor_slices((rows, (rows["a"] < 3).astype("f"))).batch(16)

def train(strategy, update):
    with strategy.scope():
        small = {"embedding_dim": 4, "mlp": (8, 6), "seed": 3, "init_std": 0.05}
        model = cc.models.MODELS[sys.argv[2]](make_schema(), tables=sys.argv[3], **small)
        adam = tf.keras.optimizers.legacy.Adam
        optimizer = cc.CowClip(adam(1e-2), adam(1e-3), l2=1e-2, update=update)
        model.compile(optimizer, "binary_crossentropy", metrics=[tf.keras.metrics.AUC(name="auc")])
    history = model.fit(data, validation_data=data, epochs=2, verbose=0).history
    return model, history

two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
for update in ("dense", "exact", "lazy"):
    (one, expected), (both, seen) = (train(s, update) for s in (tf.distribute.get_strategy(), two))
    for name in ("loss", "val_loss", "auc", "val_auc"):
        np.testing.assert_allclose(seen[name], expected[name], atol=2e-6)
    for a, b in zip(one.trainable_variables, both.trainable_variables):
        worst = max(abs(a.numpy() - c.numpy()).max() for c in two.experimental_local_results(b))
        assert worst < 5e-7, (update, b.name, worst)
        print(update, b.name, worst)
    scores = [m.predict(data, verbose=0) for m in (one, both)]
    np.testing.assert_allclose(scores[1], scores[0], atol=1e-6)
    if update != "exact" and sys.argv[2] != "deepfm":  # saving does not depend on the model
        continue
    both.save(f"{sys.argv[4]}/{update}")
    again = cc.load_model(f"{sys.argv[4]}/{update}").predict(data, verbose=0)
    np.testing.assert_allclose(again, scores[1], atol=1e-6)
    one.fit(data, train_metrics_steps=2, verbose=0)
    try:
        both.fit(data, train_metrics_steps=2, verbose=0)
        raise SystemExit("not refused")
    except InputError as error:
        assert "several replicas compute metrics at every step; remove it" in str(error)
print("equal")
"""


@pytest.mark.parametrize(
    ("name", "tables"), [("deepfm", "fused"), ("dcnv2", "per_field"), ("wide_and_deep", "fused")]
)
def test_two_replicas_equal_one(tmp_path, name, tables):
    arguments = [str(Path(__file__).parent), name, tables, str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, timeout=600
    )
    assert done.stdout.endswith("equal\n"), done.stdout + done.stderr[-3000:]
