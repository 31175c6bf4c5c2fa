"""Smoke run of one stack: prepare, 20 training steps of all five models, save and load.

Then Merlin's own models, in a process that imports them as a user's script does. Where Merlin
Systems is installed, also examples/merlin_models.py with an ensemble.

python tests/smoke.py
"""

import gc
import importlib.util
import logging
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

import cowclip_merlin as cc
from cowclip_merlin import compat
from cowclip_merlin.cli import main
from cowclip_merlin.synthetic.criteo_log import generate
from cowclip_merlin.training import RunSettings, evaluate_run, load_run, train
from cowclip_merlin.training.build import build_model

STEPS = 20
BATCH = 128


class Warnings(logging.Handler):
    """Keeps what TensorFlow warns of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []
        compat.tensorflow().get_logger().addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def smoke(work: Path) -> None:
    generate(work / "log.txt", rows=3000, seed=1)
    assert main(["prepare", "criteo", str(work / "log.txt"), "--out", str(work / "data")]) == 0
    write_histories(work / "histories.csv")
    columns = ["--label", "y", "--categorical", "item", "--continuous", "x", "--multi", "seen"]
    words = ["prepare", "table", str(work / "histories.csv"), "--out", str(work / "lists")]
    assert main([*words, *columns, "--share-embedding", "seen=item"]) == 0
    for name in cc.models.MODELS:
        # One model has the 39 columns of Criteo: to trace and save them takes most of the time.
        folder = work / ("data" if name == "deepfm" else "lists")
        data = cc.workflows.PreparedData.load(folder)
        epochs = -(-STEPS // (data.rows["train"] // BATCH))
        settings = RunSettings(
            model=name, batch_size=BATCH, mlp=(16, 16), epochs=epochs, update="exact"
        )
        rows = train(folder, settings, out=work / name)
        assert int(rows[-1]["step"]) >= STEPS
        again = evaluate_run(work / name, folder)
        assert again.auc == rows[-1]["test_auc"], (again, rows[-1])
        save_and_load(settings, data, work / f"{name}.model")
        export_and_call(work / name, data, work / f"{name}.exported")
        print(f"{name}: {rows[-1]['step']} steps, saved, loaded and exported", flush=True)
    # The last model again: exact updates give the numbers of dense ones.
    dense = train(folder, replace(settings, update="dense"), out=work / "dense")
    assert abs(dense[-1]["test_auc"] - again.auc) < 1e-5, (dense[-1], again)


def write_histories(file: Path) -> None:
    """Write a log of 3,000 rows with an item, items seen before, and a number."""
    rng = np.random.default_rng(1)
    item, size, x = rng.integers(0, 30, 3000), rng.integers(0, 5, 3000), rng.random(3000)
    seen = ["|".join(map(str, rng.integers(0, 30, n))) for n in size]
    rows = [f"{i},{s},{number},{i % 2}" for i, s, number in zip(item, seen, x)]
    file.write_text("\n".join(["item,seen,x,y", *rows]) + "\n", encoding="utf-8")


def save_and_load(settings: RunSettings, data, path: Path) -> None:
    tf = compat.tensorflow()
    model = build_model(settings, settings.hyperparameters("criteo"), data)
    model.compile(cc.CowClip(update="exact"), "binary_crossentropy")
    rng = np.random.default_rng(0)
    batch = {name: rng.integers(0, n, [64, 1]) for name, n in data.cardinalities.items()}
    batch |= {name: rng.random([64, 1]).astype(np.float32) for name in data.continuous}
    model.fit(tf.data.Dataset.from_tensor_slices((batch, np.ones([64, 1]))).batch(32), verbose=0)
    before = model.predict(tf.data.Dataset.from_tensor_slices(batch).batch(64), verbose=0)
    model.save(str(path))
    loaded = cc.load_model(str(path))
    after = loaded.predict(tf.data.Dataset.from_tensor_slices(batch).batch(64), verbose=0)
    np.testing.assert_array_equal(before, after)


def export_and_call(run: Path, data, path: Path) -> None:
    tf = compat.tensorflow()
    assert main(["export", str(run), str(data.path), "--out", str(path), "--ids"]) == 0
    score = tf.saved_model.load(str(path)).signatures["serving_default"]
    lists = data.log_format.multi
    given = {n: tf.ones([5, 1] if n in lists else [5], tf.int64) for n in data.categorical}
    given |= {name: tf.ones([5]) for name in data.continuous}
    model = load_run(run, data.path)
    got = score(**given)["probability"]
    np.testing.assert_allclose(got, tf.reshape(model(given), [-1]), atol=1e-6)


def ensemble_of_merlin_systems() -> None:
    example = Path(__file__).parents[1] / "examples/merlin_models.py"
    with tempfile.TemporaryDirectory() as folder:
        words = ["--out", f"{folder}/out", "--rows", "6000", "--batch-size", "256", "--ensemble"]
        subprocess.run([sys.executable, str(example), *words], check=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        warnings = Warnings()
        gc.freeze()  # the imported modules stay: full collections need not look at them again
        smoke(Path(folder))
        # AutoGraph must be able to read every function: `:=` is one that it cannot.
        assert not [text for text in warnings.texts if "AutoGraph" in text], warnings.texts
    own = Path(__file__).with_name("own_models_of_merlin.py")
    subprocess.run([sys.executable, str(own)], check=True)
    if importlib.util.find_spec("merlin.systems") is not None:
        ensemble_of_merlin_systems()
    tf = compat.tensorflow()
    print(f"smoke run passed: Python {sys.version.split()[0]}, TensorFlow {tf.__version__}")
