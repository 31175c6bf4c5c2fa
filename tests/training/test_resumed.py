"""A run with dropout, batch normalization, diagnostics and new embeddings, stopped and resumed."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from run_weights import (
    acting_at,
    assert_same_bits,
    at_step,
    metrics_of,
    stopped_at,
    values_of,
    without_times,
)
from tiers import thorough

from cowclip_merlin import compat
from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.training import RunSettings, evaluate_run, load_run, train, trainer
from cowclip_merlin.training.checkpoint import has_checkpoint
from cowclip_merlin.workflows import PreparedData

pytestmark = pytest.mark.runs
ALL = RunSettings(
    model="deepfm", mlp=(6, 4), embedding_dim=4, batch_size=64, base_batch_size=64, epochs=3,
    seed=5, rule="sde", update="exact", dropout=0.3, batch_norm=True, activation="dice",
    reset_embeddings=True,
)  # fmt: skip
ONE = replace(ALL, epochs=1, reset_embeddings=False)


@pytest.fixture(scope="module")
def whole(data, make_once):
    """`whole(settings)`: a run that nothing stops, in a thread that receives no signals."""

    def get(settings):
        def make(folder):
            with ThreadPoolExecutor(1) as pool:
                pool.submit(train, data, settings, out=folder / "run").result(timeout=600)

        return make_once(f"resumed-{settings.update}-{settings.reset_embeddings}", make) / "run"

    return get


@pytest.mark.parametrize(
    "settings",
    [ALL, thorough(replace(ONE, update="dense", epochs=3)),
     thorough(replace(ONE, update="lazy", epochs=3, optimizer="adagrad"))],
    ids=["exact", "dense", "lazy"],
)  # fmt: skip
def test_a_run_that_is_stopped_often_ends_with_the_same_bits(
    data, whole, tmp_path, monkeypatch, settings
):
    """Within an epoch, after its last step and before its first, whatever a call has of steps.

    Diagnostics change nothing, and where a checkpoint lies does not either.
    """
    run, steps = tmp_path / "run", -(-PreparedData.load(data).rows["train"] // 64)
    stops = [(0, 20, 5), (0, steps - 1, 1), (1, 0, 16), (2, 3, 3)]
    for number, (epoch, step, together) in enumerate(stops):
        monkeypatch.setattr(trainer, "steps_per_execution", lambda _, most=together: most)
        more = {"checkpoint_every": 7, "diagnostics_every": 4} if number == 0 else {}
        with stopped_at("_observe", at_step(epoch, step)):
            train(data, settings, out=run, resume=number > 0, **more)
    assert float(metrics_of(run)[0]["rows_per_second"]) == 0  # no row was left after its last step
    before = {file: file.read_bytes() for file in (run / "config.json", run / "metrics.csv")}
    with pytest.raises(InputError, match="run: `epochs` is 2, but epoch 3 "):
        train(data, replace(settings, epochs=2), out=run, resume=True)
    assert {file: file.read_bytes() for file in before} == before
    train(data, settings, out=run, resume=True)
    assert_same_bits(whole(settings), run)
    assert without_times(metrics_of(run)) == without_times(metrics_of(whole(settings)))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_with_a_checkpoint(data, tmp_path, capsys, number):
    words = ["train", str(data), "--out", str(tmp_path / "run"), "--model", "deepfm", "--mlp", "8"]
    words += ["--batch-size", "64", "--epochs", "1", "--device", "cpu"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with acting_at("_observe", at_step(0, 16), lambda: os.kill(os.getpid(), number)):
            assert main(words) == 128 + number
    finally:
        signal.signal(signal.SIGINT, before)
    assert "--resume" in capsys.readouterr().err
    assert has_checkpoint(tmp_path / "run")


def test_what_is_scored_is_served(data, whole, tmp_path):
    """Evaluation, the Keras model and the SavedModel have the inference form."""
    run = whole(ALL)
    assert evaluate_run(run, data).auc == float(metrics_of(run)[-1]["test_auc"])
    model = load_run(run, data, device="cpu")
    assert main(["export", str(run), str(data), "--out", str(tmp_path / "saved"), "--ids"]) == 0
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


def test_a_run_from_another_one_has_its_statistics(data, whole, tmp_path):
    before, settings = whole(ALL), replace(ONE, overrides={"embedding_lr": 0.0, "dense_lr": 0.0})
    rows = train(data, settings, out=tmp_path / "next", warm_start=str(before))
    auc = float(metrics_of(before)[-1]["test_auc"])
    assert rows[0]["test_auc"] == pytest.approx(auc, abs=0.05)
    runs = before, tmp_path / "next"
    moved = [load_run(each, data, device="cpu").blocks[0].statistics for each in runs]
    means = [np.concatenate([v.numpy() for v in each]) for each in moved]
    assert np.abs(means[0] - means[1]).max() < 0.5 * np.abs(means[0]).max()
    other = replace(settings, batch_norm=False)
    with pytest.raises(InputError, match="was trained with batch_norm True, not False"):
        train(data, other, out=tmp_path / "other", warm_start=str(before))


def test_half_precision_is_trained_and_evaluated_in(data, whole, tmp_path):
    rows = train(data, replace(ONE, precision="bfloat16"), out=tmp_path / "run")
    result = evaluate_run(tmp_path / "run", data)
    assert (result.auc, result.log_loss) == (rows[-1]["test_auc"], rows[-1]["test_log_loss"])
    loss = float(metrics_of(whole(ALL))[0]["train_loss"])
    assert rows[0]["train_loss"] != loss and rows[0]["train_loss"] == pytest.approx(loss, rel=0.05)
    policies = compat.tensorflow().keras.mixed_precision
    assert policies.global_policy().name == "float32"  # only the run's model is in half
    kinds = [{x.dtype for x in values_of(run).values()} for run in (tmp_path / "run", whole(ALL))]
    assert kinds[0] == kinds[1]
