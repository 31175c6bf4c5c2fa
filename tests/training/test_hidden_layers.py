"""Trainings with dropout, batch normalization and other activations of the hidden layers."""

import signal
from dataclasses import replace

import numpy as np
import pytest
from test_falling_rates import assert_same_weights

from cowclip_merlin import compat
from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.system.signals import Stopped
from cowclip_merlin.training import RunSettings, evaluate_run, load_run, train
from cowclip_merlin.training.trainer import Trainer
from cowclip_merlin.workflows import PreparedData

FULL = RunSettings(
    model="deepfm", mlp=(6, 4), embedding_dim=4, batch_size=256, base_batch_size=256, epochs=2,
    seed=5, rule="sde", update="exact", dropout=0.3, batch_norm=True, activation="dice",
)  # fmt: skip


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("hidden") / "run"
    return out, train(data, FULL, out=out)


@pytest.mark.runs
def test_a_stopped_run_goes_on_to_the_same_bits(data, run, tmp_path, monkeypatch):
    """So the same outputs are dropped, and the moving statistics are those of the checkpoint."""
    step = Trainer._train_batch

    def stopping(self, batch):
        step(self, batch)
        if int(self.optimizer.iterations.numpy()) > 8:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(Trainer, "_train_batch", stopping)
        train(data, FULL, out=tmp_path / "run", checkpoint_every=3)
    train(data, FULL, out=tmp_path / "run", resume=True, checkpoint_every=3)
    assert_same_weights(run[0], tmp_path / "run")


@pytest.mark.runs
def test_what_is_scored_is_served(data, run, tmp_path):
    """Evaluation, the Keras model and the SavedModel have the inference form."""
    out, rows = run
    assert evaluate_run(out, data).auc == rows[-1]["test_auc"]
    model = load_run(out, data, device="cpu")
    assert main(["export", str(out), str(data), "--out", str(tmp_path / "saved")]) == 0
    served = compat.tensorflow().saved_model.load(str(tmp_path / "saved"))
    signature = served.signatures["serving_default"]
    inputs = {
        name: compat.tensorflow().constant(np.ones(3), spec.dtype)
        for name, spec in signature.structured_input_signature[1].items()
    }
    found = signature(**inputs)["probability"]
    columns = {name: values[:, None] for name, values in inputs.items()}
    np.testing.assert_allclose(found, model.predict(columns, verbose=0)[:, 0], rtol=1e-5)
    np.testing.assert_array_equal(found, signature(**inputs)["probability"])


@pytest.mark.runs
def test_diagnostics_change_nothing(data, run, tmp_path):
    train(data, FULL, out=tmp_path / "run", diagnostics_every=2)
    assert_same_weights(run[0], tmp_path / "run")


@pytest.mark.runs
def test_a_run_from_another_one_has_its_statistics(data, run, tmp_path):
    settings = replace(FULL, epochs=1, overrides={"embedding_lr": 0.0, "dense_lr": 0.0})
    rows = train(data, settings, out=tmp_path / "next", warm_start=str(run[0]))
    assert rows[0]["test_auc"] == pytest.approx(run[1][-1]["test_auc"], abs=0.05)
    runs = run[0], tmp_path / "next"
    moved = [load_run(each, data, device="cpu").blocks[0].statistics for each in runs]
    means = [np.concatenate([v.numpy() for v in each]) for each in moved]
    assert np.abs(means[0] - means[1]).max() < 0.5 * np.abs(means[0]).max()
    with pytest.raises(InputError, match="was trained with batch_norm True, not False"):
        train(
            data,
            replace(settings, batch_norm=False),
            out=tmp_path / "other",
            warm_start=str(run[0]),
        )


@pytest.mark.runs
@pytest.mark.parametrize("precision", ["bfloat16"])
def test_half_precision_trains(data, tmp_path, precision):
    rows = train(data, replace(FULL, precision=precision, epochs=1), out=tmp_path / "run")
    assert np.isfinite(rows[-1]["test_log_loss"])


@pytest.mark.system
def test_two_workers_agree_and_serve_what_they_score(data, tmp_path):
    """Also if one of them has no row of the last batch."""
    out, batch = tmp_path / "run", PreparedData.load(data).rows["train"] - 1
    rows = train(data, replace(FULL, epochs=1, batch_size=batch), out=out, workers=2, device="cpu")
    assert rows[-1]["step"] == 2
    assert evaluate_run(out, data).auc == pytest.approx(rows[-1]["test_auc"], abs=1e-9)
