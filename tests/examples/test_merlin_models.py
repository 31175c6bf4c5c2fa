"""examples/merlin_models.py: it runs end to end, and says what is wrong in one line."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

import cowclip_merlin as cc
from cowclip_merlin import compat

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples"))

import merlin_models as example  # noqa: E402

pytestmark = [pytest.mark.runs, pytest.mark.thorough]

SYSTEMS = importlib.util.find_spec("merlin.systems") is not None


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """One model, because both take a minute on a busy machine; the smoke run has both."""
    out = tmp_path_factory.mktemp("example") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(example, "MODELS", {"DCN": example.dcn})
        words = ["--out", str(out), "--rows", "6000", "--batch-size", "256", "--epochs", "4"]
        assert example.main([*words, *(["--ensemble"] if SYSTEMS else [])]) == 0
    return out


def test_it_learns_and_what_it_saved_predicts(made):
    nvt, mm = compat.nvtabular(), compat.merlin_models()
    raw = example.read_log(made / "log.txt")
    workflow = nvt.Workflow.load(str(made / "workflow"))
    rows = workflow.transform(nvt.Dataset(raw))
    scores = example.predict(mm.Model.load(str(made / "DCN")), rows, 1000)
    assert scores.shape == (6000,) and 0 < scores.min() < scores.max() < 1
    label = raw[example.LABEL].to_numpy()
    assert cc.roc_auc(label, scores) > 0.6


def test_missing_and_unknown_values_get_their_ids(made):
    nvt = compat.nvtabular()
    workflow = nvt.Workflow.load(str(made / "workflow"))
    raw = example.read_log(made / "log.txt").head(3)
    raw["C1"] = [None, "never seen", raw["C1"][2]]
    ids = workflow.transform(nvt.Dataset(raw)).to_ddf().compute()["C1"].tolist()
    assert ids[:2] == [1, 2] and ids[2] > 0


@pytest.mark.skipif(SYSTEMS, reason="Merlin Systems is installed")
def test_without_merlin_systems_the_remedy_is_named(tmp_path, capsys):
    assert example.main(["--out", str(tmp_path / "out"), "--ensemble"]) == 2
    assert "make_venv.sh ngc" in capsys.readouterr().err


def test_a_model_that_loads_differently_is_noticed(tmp_path, capsys, monkeypatch):
    def differs(out, settings, *, ensemble):
        example.check_equal("DCN, loaded", np.array([0.5, np.nan]), np.array([0.5, 0.5]))

    monkeypatch.setattr(example, "run", differs)
    assert example.main(["--out", str(tmp_path / "out")]) == 2
    assert "DCN, loaded: predictions differ" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
