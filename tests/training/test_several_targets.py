"""Several targets: an export, the command line, and what a run cannot have."""

import csv
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import open_columns
from cowclip_merlin.training import RunSettings, evaluate_run, export_run, train
from cowclip_merlin.training.run_config import RunConfig
from cowclip_merlin.workflows import PreparedData, PrepareSettings, prepare

SMALL = {"mlp": (8,), "batch_size": 64, "base_batch_size": 64, "epochs": 2, "embedding_dim": 4}
RUN = RunSettings(model="deepfm", multi_task="mmoe", experts=2, **SMALL)
ESMM = {"multi_task": "esmm", "experts": 4}
TARGETS = ("click", "buy", "seconds")


def table():
    rng = np.random.default_rng(3)
    user, age = rng.integers(0, 40, 1200), rng.random(1200)
    click = (rng.random(1200) < 0.2 + 0.5 * (user % 2)).astype(int)
    buy = np.where(rng.random(1200) < 0.3, None, click * (rng.random(1200) < 0.5).astype(int))
    seconds = np.where(click == 1, user / 20 + rng.normal(size=1200) / 10, np.nan)
    rows = {"user": user, "age": age, "click": click, "buy": buy, "seconds": seconds}
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("targets")
    table().to_csv(folder / "log.csv", index=False)
    columns = {"kind": "table", "categorical": ("user",), "continuous": ("age",)}
    given = {"files": (folder / "log.csv",), **columns}
    several = {"label": TARGETS, "regression": ("seconds",)}
    prepare(PrepareSettings(out=folder / "DATA", **several, **given))
    prepare(PrepareSettings(out=folder / "BINARY", label=("click", "buy"), **given))
    prepare(PrepareSettings(out=folder / "ONE", label="click", **given))
    return folder


def test_an_exported_model_of_esmm(folder, tmp_path):
    """A purchase is not more probable than the click before it."""
    tf = compat.tensorflow()
    train(folder / "BINARY", replace(RUN, epochs=1, **ESMM), out=tmp_path / "RUN")
    export_run(tmp_path / "RUN", folder / "BINARY", out=tmp_path / "MODEL")
    served = tf.saved_model.load(str(tmp_path / "MODEL")).signatures["serving_default"]
    test = open_columns(PreparedData.load(folder / "BINARY"), "test")
    given = {"user": test.ids[:, 0].astype(np.int64), "age": test.continuous[:, 0]}
    found = served(**{key: tf.constant(value) for key, value in given.items()})
    evaluate_run(tmp_path / "RUN", folder / "BINARY", predictions=tmp_path / "p.parquet")
    expected = pd.read_parquet(tmp_path / "p.parquet")
    for target in ("click", "buy"):
        np.testing.assert_allclose(found[target], expected[f"probability_{target}"], rtol=1e-5)
    assert (found["buy"].numpy() <= found["click"].numpy()).all()


def test_a_run_of_one_label_names_no_targets(folder, tmp_path):
    one = replace(RUN, multi_task="shared_bottom", experts=4, epochs=1)
    train(folder / "ONE", one, out=tmp_path / "RUN")
    config = json.loads((tmp_path / "RUN" / "config.json").read_text())
    assert config["data_targets"] == {}
    with (tmp_path / "RUN" / "metrics.csv").open(newline="") as file:
        assert not [name for name in csv.DictReader(file).fieldnames or () if "click" in name]
    assert RunConfig.load(tmp_path / "RUN").settings == one
    assert 0 < evaluate_run(tmp_path / "RUN", folder / "ONE").auc < 1


def test_what_a_run_cannot_have_is_refused(folder, tmp_path):
    with pytest.raises(InputError, match="needs two labels of 0 and 1"):
        train(folder / "DATA", replace(RUN, **ESMM), out=tmp_path / "RUN")
    assert not (tmp_path / "RUN").exists()


def test_a_target_needs_both_labels_to_be_scored(folder, tmp_path):
    rows = table()
    rows.loc[1100:, "buy"] = None
    rows.to_csv(tmp_path / "log.csv", index=False)
    given = {"kind": "table", "categorical": ("user",), "label": ("click", "buy"), "split": "time"}
    data = prepare(PrepareSettings(files=(tmp_path / "log.csv",), out=tmp_path / "DATA", test_fraction=0.05, **given))  # noqa: E501  # fmt: skip
    with pytest.raises(InputError, match="no test row has a label 'buy'; prepare with a larger"):
        train(data.path, replace(RUN, epochs=1), out=tmp_path / "RUN")
    train(data.path, replace(RUN, epochs=1, validation_fraction=0.2), out=tmp_path / "RUN")
    found = evaluate_run(tmp_path / "RUN", data.path).targets["buy"]  # not one test row has it
    assert found.rows == 0 and np.isnan(found.auc) and np.isnan(found.log_loss)
