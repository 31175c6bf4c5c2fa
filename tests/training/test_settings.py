"""Settings: what the experiments need can be said with them, and old runs can still be read."""

import math
from dataclasses import replace

import pytest
from tiers import thorough

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.training import RunSettings, train
from cowclip_merlin.training.build import build_optimizer, choose_device
from cowclip_merlin.workflows import PreparedData

BIG = {"model": "deepfm", "batch_size": 131072}  # 128 times the base batch
ROOT = math.sqrt(128)
WHOLE = {"embedding_lr": 1e-4, "dense_lr": 8e-4 * ROOT, "l2": 128e-5, "r": 1.0, "zeta": 1e-5,
         "init_std": 1e-2, "warmup_epochs": 1.0}  # fmt: skip
COWCLIP_START = {"dense_lr": 8e-4, "init_std": 1e-2, "warmup_epochs": 1.0}

# name -> (settings, clip in force, what differs from CowClip's own values at 128K on Criteo)
RUNS = {
    "CowClip": ({}, "cowclip", {}),
    "L2 by the n2_lambda rule": (
        {"rule": "n2_lambda", "clip": "cowclip", "overrides": COWCLIP_START},
        "cowclip",
        {"l2": 1e-5 * 16384},
    ),
    "dense rate linear": (
        {"overrides": {"dense_lr": 8e-4 * ROOT}},
        "cowclip",
        {"dense_lr": 8e-4 * 128},
    ),
    "no zeta": ({"overrides": {"zeta": 0.0}}, "cowclip", {"zeta": 0.0}),
    "no warm-up": ({"overrides": {"warmup_epochs": 0.0}}, "cowclip", {"warmup_epochs": 0.0}),
    "small initialisation": ({"overrides": {"init_std": 1e-4}}, "cowclip", {"init_std": 1e-4}),
    "one epoch, lazy, an L2 of its own": (
        {"update": "lazy", "epochs": 1, "overrides": {"l2": 3e-7}},
        "cowclip",
        {"l2": 384e-7},
    ),
    "one epoch, exact, an L2 of its own": (
        {"update": "exact", "epochs": 1, "overrides": {"l2": 3e-7}},
        "cowclip",
        {"l2": 384e-7},
    ),
    "CowClip's values, no clip": ({"clip": "none"}, "none", {}),
    "field-wise, a bound of its own": (
        {"clip": "field", "overrides": {"bound": 2.0}},
        "field",
        {"bound": 2.0 * ROOT},
    ),
    "baseline, linear": (
        {"rule": "linear"},
        "none",
        {"embedding_lr": 128e-4, "dense_lr": 128e-4, "l2": 1e-5, "init_std": 1e-4,
         "warmup_epochs": 0.0},
    ),
    "sde": (
        {"rule": "sde"},
        "none",
        {"embedding_lr": 1e-4 * ROOT, "dense_lr": 1e-4 * ROOT, "l2": 1e-5, "init_std": 1e-4,
         "warmup_epochs": 0.0, "r": 1 / 128, "zeta": 1e-5 / 128, "beta_1": 0.7, "beta_2": 0.872,
         "epsilon": 1e-7 / ROOT},
    ),
    "sde with CowClip's clip and start": (
        {"rule": "sde", "clip": "cowclip", "overrides": COWCLIP_START | {"beta_1": 0.8}},
        "cowclip",
        {"embedding_lr": 1e-4 * ROOT, "l2": 1e-5, "r": 1 / 128, "zeta": 1e-5 / 128,
         "beta_1": 0.7, "beta_2": 0.872, "epsilon": 1e-7 / ROOT},
    ),
    "Adagrad without a clip": (
        {"rule": "none", "optimizer": "adagrad",
         "overrides": {"embedding_lr": 0.02, "dense_lr": 0.01, "l2": 0.0}},
        "none",
        {"embedding_lr": 0.02, "dense_lr": 0.01, "l2": 0.0, "init_std": 1e-4,
         "warmup_epochs": 0.0},
    ),
    "sde with Adagrad": (
        {"rule": "sde", "optimizer": "adagrad",
         "overrides": {"embedding_lr": 0.02, "dense_lr": 0.01, "l2": 0.0, "epsilon": 1e-6,
                       "initial_accumulator": 0.5}},
        "none",
        {"embedding_lr": 0.02, "dense_lr": 0.01, "l2": 0.0, "init_std": 1e-4, "warmup_epochs": 0.0,
         "r": 1 / 128, "zeta": 1e-5 / 128, "epsilon": 1e-6 / 128,
         "initial_accumulator": 0.5 / 128**2},
    ),
    "Clippy": (
        {"rule": "linear", "clip": "clippy", "overrides": {"lambda_rel": 0.1}},
        "clippy",
        {"embedding_lr": 128e-4, "dense_lr": 128e-4, "l2": 1e-5, "init_std": 1e-4,
         "warmup_epochs": 0.0, "lambda_rel": 0.1, "lambda_abs": 1e-2},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_ablations_and_rivals_have_these_values_in_the_optimizer(name, data):
    given, clip, changes = RUNS[name]
    settings, expected = RunSettings(**(BIG | given)), WHOLE | changes
    values = settings.hyperparameters("criteo")
    assert settings.effective_clip == clip
    for key, number in expected.items():
        assert getattr(values, key) == pytest.approx(number, rel=1e-12), key
    prepared = PreparedData.load(data)
    optimizer = build_optimizer(settings, values, prepared, steps=4)
    config = optimizer.get_config()
    assert (config["clip"], config["update"]) == (clip, settings.update)
    for key in ("l2", "r", "zeta", *({"bound", "lambda_rel", "lambda_abs"} & expected.keys())):
        assert config[key] == pytest.approx(expected[key]), key
    inner = [optimizer.embedding_optimizer, optimizer.dense_optimizer]
    assert all(settings.optimizer in type(each).__name__.lower() for each in inner)
    assert float(inner[0].learning_rate.numpy()) == pytest.approx(expected["embedding_lr"])
    if settings.optimizer == "adam":
        usual = {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}
        wanted = {name: expected.get(name, value) for name, value in usual.items()}
        for each in inner:
            assert {name: each.get_config()[name] for name in wanted} == pytest.approx(wanted)
    rate = inner[1].learning_rate
    rate = rate(4) if expected["warmup_epochs"] else rate  # after one epoch of four steps
    assert float(rate) == pytest.approx(expected["dense_lr"], rel=1e-6)


@pytest.mark.parametrize("start", [None, 0.0, 0.7])
@pytest.mark.parametrize("optimizer", ["adagrad", "rowwise_adagrad"])
def test_adagrad_starts_where_it_is_told(data, optimizer, start):
    given = {} if start is None else {"overrides": {"initial_accumulator": start}}
    settings = RunSettings(**BIG, optimizer=optimizer, **given)
    prepared = PreparedData.load(data)
    optimizer = build_optimizer(settings, settings.hyperparameters("criteo"), prepared, steps=4)
    for inner in (optimizer.embedding_optimizer, optimizer.dense_optimizer):
        config = inner.get_config()
        assert config["initial_accumulator_value"] == (1e-7 if start is None else start)
    kinds = [type(x).__name__ for x in (optimizer.embedding_optimizer, optimizer.dense_optimizer)]
    assert kinds == ["Adagrad" if settings.optimizer == "adagrad" else "RowWiseAdagrad", "Adagrad"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"rule": "sde", "base_batch_size": 8, "overrides": {"embedding_lr": 1e-3}},
            "adam (betas 0.7, 0.968, epsilon 1.77e-08)",
        ),
        thorough(
            {"rule": "none", "base_batch_size": 256, "optimizer": "rowwise_adagrad",
             "overrides": {"embedding_lr": 0.05, "dense_lr": 0.05, "l2": 0.0, "init_std": 1e-2,
                           "initial_accumulator": 0.01}},
            "rowwise_adagrad (initial accumulator 0.01, epsilon 1e-07), update exact",
        ),
    ],
)  # fmt: skip
def test_a_run_learns_and_resumes_with_its_optimizer(data, tmp_path, given, words):
    settings = RunSettings(
        model="deepfm", batch_size=256, mlp=(8,), epochs=1, update="exact", **given
    )
    train(data, settings, out=tmp_path / "run")
    rows = train(data, replace(settings, epochs=2), out=tmp_path / "run", resume=True)
    whole = train(data, replace(settings, epochs=2), out=tmp_path / "whole")
    assert float(rows[-1]["train_loss"]) == whole[-1]["train_loss"] < whole[0]["train_loss"]
    assert words in (tmp_path / "run/train.log").read_text()


def test_a_run_with_clippy_is_held_back(data, tmp_path):
    settings = RunSettings(
        model="deepfm", batch_size=256, base_batch_size=256, mlp=(8,), epochs=1, rule="none",
        clip="clippy", optimizer="adagrad",
        overrides={"embedding_lr": 1.0, "lambda_abs": 1e-4, "lambda_rel": 0.0},
    )  # fmt: skip
    row = train(data, settings, out=tmp_path / "run")[-1]
    assert row["clipped_share"] > 0 and 0 < row["mean_clip_factor"] < 1


def test_a_device_is_chosen_after_tensorflow_has_started(monkeypatch):
    """On a GPU, in a script that has computed before: its settings are fixed by then."""
    config = compat.tensorflow().config

    def too_late(*_):
        raise RuntimeError("cannot be modified after being initialized")

    monkeypatch.setattr(config, "list_physical_devices", lambda kind: ["GPU:0"])
    monkeypatch.setattr(config, "set_visible_devices", too_late)
    monkeypatch.setattr(config.experimental, "set_memory_growth", too_late)
    assert choose_device("auto") == choose_device("gpu") == "gpu"
    with pytest.raises(InputError, match=r"started with a GPU.*CUDA_VISIBLE_DEVICES"):
        choose_device("cpu")
