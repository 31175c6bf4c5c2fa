"""The package without `contrib`: it trains and scores, and imports what it needs by name."""

import sys

import pytest

import cowclip_merlin as cc
from cowclip_merlin.choices import CONTRIB, contributed
from cowclip_merlin.training import RunSettings, train

SMALL = {"batch_size": 512, "mlp": (8,), "epochs": 1}


@pytest.fixture
def without_contrib(monkeypatch):
    """An import of `contrib` fails, whatever this process has imported before."""
    for name in [each for each in sys.modules if each.startswith("cowclip_merlin.contrib")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cowclip_merlin.contrib", None)


@pytest.mark.runs
def test_the_rest_trains_and_scores_without_it(without_contrib, data, log, tmp_path):
    settings = RunSettings(model="deepfm", update="exact", **SMALL)
    (row,) = train(data, settings, out=tmp_path / "run")
    assert row["test_auc"] > 0
    assert len(cc.score(tmp_path / "run", log)) == sum(1 for _ in log.open())
    for more in ({"diagnostics_every": 1}, {"scheduler": "tcp://127.0.0.1:1"}):
        with pytest.raises(ModuleNotFoundError, match=r"contrib"):
            train(data, settings, out=tmp_path / "other", **more)
    with pytest.raises(ModuleNotFoundError, match=r"contrib"):
        train(data, RunSettings(model="dcn", clip="clippy", **SMALL), out=tmp_path / "clippy")


@pytest.mark.parametrize("name", CONTRIB)
def test_every_name_is_where_the_table_says(name):
    assert contributed(name).__module__ == f"cowclip_merlin.contrib.{CONTRIB[name]}"
