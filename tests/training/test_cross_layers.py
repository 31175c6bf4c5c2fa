"""The number of cross layers of a run: built, kept for scoring, and the same when it goes on."""

import pytest

import cowclip_merlin as cc
from cowclip_merlin.errors import InputError
from cowclip_merlin.training import RunSettings, train


@pytest.mark.parametrize(("model", "layers"), [("dcn", 1), ("dcnv2", 4)])
def test_a_run_has_its_cross_layers(small, tmp_path, model, layers):
    given = {"model": model, "batch_size": 1024, "epochs": 1, "mlp": (4,), "embedding_dim": 2}
    settings = RunSettings(cross_layers=layers, **given)
    (row,) = train(small, settings, out=tmp_path / "run", device="cpu")
    loaded = cc.training.load_run(tmp_path / "run", small, device="cpu")
    assert len(loaded.blocks[0].cross.w) == layers
    scored = cc.training.evaluate_run(tmp_path / "run", small, device="cpu")
    assert scored.auc == pytest.approx(row["test_auc"])
    start = {"warm_start": tmp_path / "run", "device": "cpu"}
    with pytest.raises(InputError, match=f"was trained with cross_layers {layers}, not 3"):
        train(small, RunSettings(**given), out=tmp_path / "next", **start)
