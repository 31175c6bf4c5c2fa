"""A replay that starts from an offline run scores like that run."""

import dataclasses

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml

from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.online import load_features
from cowclip_merlin.online.events.columns import ListRules
from cowclip_merlin.online.replaying.replay_results import PredictionFiles
from cowclip_merlin.online.training.start import OfflineStart
from cowclip_merlin.online.training.trainer import OnlineTrainer

pytestmark = pytest.mark.runs

CATEGORICAL = ("user", "item", "category", "site", "device", "hour")
MODEL = {"mlp": "8", "embedding-dim": "4"}


@pytest.fixture(scope="module")
def offline(drifting, make_once):
    """Two days prepared, the last day prepared like them, and a features file."""

    def make(folder):
        lines = (drifting / "log.csv").read_text().splitlines()
        (folder / "first.csv").write_text("\n".join(lines[:4001]) + "\n")
        (folder / "rest.csv").write_text("\n".join([lines[0], *lines[4001:]]) + "\n")
        table = ["prepare", "table", "--device", "cpu"]
        columns = ["--label", "click", "--categorical", ",".join(CATEGORICAL)]
        columns += ["--continuous", "price", "--freq-threshold", "2"]
        data = ["--out", str(folder / "data")]
        assert main([*table, str(folder / "first.csv"), *columns, *data]) == 0
        like = ["--like", str(folder / "data"), "--out", str(folder / "rest")]
        assert main([*table, str(folder / "rest.csv"), *like]) == 0
        features = yaml.safe_load((drifting / "log.csv.yaml").read_text())
        features |= {"prepared": "data", "categorical": [*CATEGORICAL]}
        (folder / "features.yaml").write_text(yaml.safe_dump(features))

    return make_once("offline", make)


def options(values):
    return [word for name, value in values.items() for word in (f"--{name}", value)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model", "update", "layers"),
    [("dcn", "dense", "--batch-norm --dropout 0.2 --activation dice"), ("deepfm", "exact", "")],
)
def test_the_first_scores_are_those_of_the_run(tmp_path, offline, model, update, layers, capsys):
    """Also of rates, layers and tables other than those of tests/columns/test_scores.py."""
    tables = {"exact": "fused", "dense": "per_field"}[update]
    train = {"model": model, "batch-size": "256", "update": update, "epochs": "2"} | MODEL
    train |= {"tables": tables, "embedding-lr": "0.01", "out": str(tmp_path / "run")}
    assert main(["train", str(offline / "data"), *options(train), *layers.split()]) == 0
    scores = tmp_path / "scores.parquet"
    rest = [str(tmp_path / "run"), str(offline / "rest"), "--predictions", str(scores)]
    assert main(["evaluate", *rest]) == 0
    replay = {"model": model, "batch-size": "256", "batch-days": "0", "sync": "never,1h"} | MODEL
    replay |= {"features": str(offline / "features.yaml"), "out": str(tmp_path / "replay")}
    start = ["--start", str(tmp_path / "run"), str(offline / "data"), "--max-rows", "5000"]
    words = [*options(replay), *start, *layers.split()]
    assert main(["online", "replay", str(offline / "rest.csv"), *words]) == 0
    assert "never" in capsys.readouterr().out
    found = PredictionFiles(tmp_path / "replay/predictions", ("never", "1h")).read()
    wanted = pq.read_table(scores)["probability"].to_numpy()
    np.testing.assert_allclose(found["never"], wanted, rtol=0, atol=1e-6)
    assert np.ptp(wanted) > 0.05 and np.abs(found["1h"] - wanted).max() > 1e-3
    known = set(pd.read_csv(offline / "first.csv").user)
    rest = pd.read_csv(offline / "rest.csv").user
    assert 0 < rest.isin(known).mean() < 1  # unseen values read the absent row


@pytest.fixture(scope="module")
def run(offline, make_once):
    settings = {"model": "deepfm", "batch-size": "1024", "epochs": "1"} | MODEL
    words = ["train", str(offline / "data"), *options(settings)]

    def make(folder):
        assert main([*words, "--out", str(folder / "run")]) == 0

    return make_once("offline_run", make) / "run"


@pytest.mark.thorough
def test_zeros_for_absent_ids_stay_zeros(offline, run, settings_of):
    features = load_features(offline / "features.yaml")
    for absent, zeros in (("zeros", True), ("trained", False)):
        trainer = OnlineTrainer(settings_of(table={"absent": absent}), features)
        OfflineStart(run, offline / "data", trainer).apply(now=5)
        assert trainer.table.num_rows > 100 and trainer.table.clock == 5
        assert (not trainer.table.memory[0].w[: len(CATEGORICAL)].any()) == zeros


def test_what_does_not_fit_is_refused(offline, run, settings_of, features):
    fitting = load_features(offline / "features.yaml")

    def start(settings, columns):
        OfflineStart(run, offline / "data", OnlineTrainer(settings, columns)).apply(0)

    with pytest.raises(InputError, match=r"mlp \(8,\), not \(4,\); "):
        start(settings_of(mlp=(4,)), fitting)
    with pytest.raises(InputError, match="model deepfm, not dcn"):
        start(settings_of("dcn"), fitting)
    with pytest.raises(InputError, match=r"'price' is not transformed.*`prepared: FOLDER`"):
        start(settings_of(), features)
    swapped = dataclasses.replace(fitting, categorical=fitting.categorical[::-1])
    with pytest.raises(InputError, match="are hour, device, site"):
        start(settings_of(), swapped)
    hashed = dataclasses.replace(fitting.categorical[0], buckets=9)
    hashed = dataclasses.replace(fitting, categorical=(hashed, *fitting.categorical[1:]))
    with pytest.raises(InputError, match="column 'user' has buckets"):
        start(settings_of(), hashed)
    kept = dataclasses.replace(fitting.categorical[0], text=True)
    kept = dataclasses.replace(fitting, categorical=(kept, *fitting.categorical[1:]))
    with pytest.raises(InputError, match=r"in column 'user', 47\.0 is 47; remove `text` in"):
        start(settings_of(), kept)
    user, *others = fitting.categorical
    for change, words in (
        ({"lists": ListRules(separator="|")}, r"'user' has one value .*; remove its `separator`"),
        ({"table": "item"}, r"'user' has the ids of 'user', not .*; remove its `tab"),
    ):
        columns = (dataclasses.replace(user, **change), *others)
        with pytest.raises(InputError, match=words):
            start(settings_of(), dataclasses.replace(fitting, categorical=columns))
    with pytest.raises(InputError, match=r"full: .*max_rows allows 9"):
        start(settings_of(table={"max_rows": 9}), fitting)
