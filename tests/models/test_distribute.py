"""The five models made in the scope of a strategy: two replicas end where one does."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.system

SCRIPT = """
import sys
import numpy as np
import cowclip_merlin as cc
from cowclip_merlin import compat
from cowclip_merlin.errors import InputError

sys.path[:0] = sys.argv[1], sys.argv[1] + "/.."
from conftest import FIELDS, make_schema

tf, (name, tables, update, folder) = compat.tensorflow(), sys.argv[2:]
exact = update == "exact"
rng = np.random.default_rng(1)
rows = {name: rng.integers(0, size, [160, 1]) for name, size in FIELDS.items()}
rows |= {name: rng.random([160, 1]).astype("f") for name in ("x", "y")}
data = tf.data.Dataset.from_tensor_slices((rows, (rows["a"] < 3).astype("f"))).batch(16)

def train(strategy):
    with strategy.scope():
        small = {"embedding_dim": 4, "mlp": (8, 6), "seed": 3, "init_std": 0.05}
        model = cc.models.MODELS[name](make_schema(), tables=tables, **small)
        adam = tf.keras.optimizers.legacy.Adam
        optimizer = cc.CowClip(adam(1e-2), adam(1e-3), l2=1e-2, update=update)
        metrics = [tf.keras.metrics.AUC(name="auc")] if exact else []
        model.compile(optimizer, "binary_crossentropy", metrics=metrics)
    # Under "exact" the validation after the first epoch brings rows up to date.
    validation = {"validation_data": data} if exact else {}
    return model, model.fit(data, epochs=2, verbose=0, **validation).history

(one, expected), (both, seen) = (train(s) for s in (tf.distribute.get_strategy(), two))
for key in ("loss", "val_loss", "auc", "val_auc") if exact else ("loss",):
    np.testing.assert_allclose(seen[key], expected[key], atol=2e-6)
for a, b in zip(one.trainable_variables, both.trainable_variables):
    worst = max(abs(a.numpy() - c.numpy()).max() for c in two.experimental_local_results(b))
    assert worst < 5e-7, (b.name, worst)
if exact:
    scores = [m.predict(data, verbose=0) for m in (one, both)]
    np.testing.assert_allclose(scores[1], scores[0], atol=1e-6)
if exact:
    both.save(folder)
    again = cc.load_model(folder).predict(data, verbose=0)
    np.testing.assert_allclose(again, scores[1], atol=1e-6)
if exact:
    one.fit(data, train_metrics_steps=2, verbose=0)
    try:
        both.fit(data, train_metrics_steps=2, verbose=0)
        raise SystemExit("not refused")
    except InputError as error:
        assert "several replicas compute metrics at every step; remove it" in str(error)
print("equal")
"""


@pytest.mark.parametrize(
    ("name", "tables", "update"),
    [
        ("deepfm", "fused", "exact"),
        ("dcnv2", "per_field", "lazy"),
        ("wide_and_deep", "fused", "dense"),
    ],
)
def test_two_replicas_equal_one(two_devices, tmp_path, name, tables, update):
    arguments = [str(Path(__file__).parent), name, tables, update, str(tmp_path / "model")]
    assert two_devices.run(SCRIPT, *arguments) == "equal\n"
