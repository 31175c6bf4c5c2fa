"""Folders whose names have a meaning in patterns: what is trained there is found again."""

import shutil

import numpy as np
import pandas as pd
import pytest

import cowclip_merlin as cc
from cowclip_merlin import compat
from cowclip_merlin.cli import main
from cowclip_merlin.training import RunSettings, evaluate_run, train
from cowclip_merlin.training.stopping.early_stopping import kept_scorings
from cowclip_merlin.workflows import PreparedData, PrepareSettings, prepare

SMALL = {"mlp": (4,), "batch_size": 64, "base_batch_size": 64, "embedding_dim": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with such a name, and prepared data in it."""
    folder, rng = tmp_path_factory.mktemp("paths") / "a[1]*?\\x", np.random.default_rng(3)
    folder.mkdir()
    user = rng.integers(0, 20, 600)
    rows = pd.DataFrame({"user": user, "y": (rng.random(600) < 0.1 + 0.6 * (user % 2)).astype(int)})
    rows.to_csv(folder / "log.csv", index=False)
    columns = {"label": "y", "categorical": ("user",), "kind": "table"}
    prepare(PrepareSettings(files=(folder / "log.csv",), out=folder / "DATA", **columns))
    return folder


@pytest.fixture(scope="module")
def run(folder):
    """A run folder with such a name, and its rows."""
    out = folder / "RUN[lr=1e-3]"
    return out, train(folder / "DATA", RunSettings(model="dcn", epochs=3, **SMALL), out=out)


@pytest.mark.runs
def test_a_run_is_found_again(folder, run, tmp_path):
    data, (run, rows) = folder / "DATA", run
    assert len(list((run / "checkpoints").iterdir())) == 2
    assert main(["evaluate", str(run), str(data)]) == 0
    assert (
        main(["score", str(run), str(folder / "log.csv"), "--out", str(tmp_path / "s.parquet")])
        == 0
    )
    shutil.copytree(run, tmp_path / "plain")
    for one in (run, tmp_path / "plain"):
        settings = RunSettings(model="dcn", epochs=4, **SMALL)
        more = train(data, settings, out=one, resume=True)
        assert more[:3] == rows and evaluate_run(one, data).auc == more[3]["test_auc"]
    train(data, RunSettings(model="dcn", epochs=1, **SMALL), out=folder / "ON", warm_start=run)


@pytest.mark.runs
def test_the_best_epoch_is_found_again(folder):
    settings = RunSettings(
        model="dcn", epochs=2, validation_fraction=0.2, early_stopping=2, **SMALL
    )
    train(folder / "DATA", settings, out=folder / "BEST")
    assert kept_scorings(folder / "BEST")
    assert evaluate_run(folder / "BEST", folder / "DATA").rows == 60


@pytest.mark.runs
def test_models_are_exported_and_loaded(folder, run):
    data, (run, _) = str(folder / "DATA"), run
    assert main(["export", str(run), data, "--out", str(folder / "MODEL"), "--ids"]) == 0
    ids = {"user": np.array([3, 4])}
    model = cc.load_model(str(folder / "MODEL"))
    same = cc.training.load_run(run, data).predict(ids, verbose=0)
    np.testing.assert_allclose(model.predict(ids, verbose=0), same, rtol=1e-6)
    assert main(["export", str(run), data, "--out", str(folder / "REPO"), "--triton"]) == 0
    saved = folder / "REPO" / "ctr" / "1" / "model.savedmodel"
    assert compat.tensorflow().saved_model.load(str(compat.literal_path(saved)))


def test_a_path_without_such_characters_stays(tmp_path):
    assert compat.literal_path(tmp_path / "a") == tmp_path / "a"
    wild = tmp_path / "b[1]"
    wild.mkdir()
    assert compat.literal_path(wild).samefile(wild)
    assert compat.literal_path(wild) == compat.literal_path(wild)


def test_prepared_data_have_these_names(folder):
    assert PreparedData.load(folder / "DATA").rows == {"train": 540, "test": 60}
