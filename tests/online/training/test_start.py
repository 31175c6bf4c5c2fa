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
from cowclip_merlin.online.replaying.replay_results import PredictionFiles
from cowclip_merlin.online.training.start import OfflineStart
from cowclip_merlin.online.training.trainer import OnlineTrainer

pytestmark = pytest.mark.runs

CATEGORICAL = ("user", "item", "category", "site", "device", "hour")
MODEL = {"mlp": "8", "embedding-dim": "4"}


def with_tags(lines):
    """Lines with one more column, of which each row has up to four values."""
    rng, names = np.random.default_rng(2), [f"t{i}" for i in range(30)]
    tags = ["|".join(rng.choice(names, rng.integers(0, 5))) for _ in lines[1:]]
    return [f"{line},{each}" for line, each in zip(lines, ["tags", *tags])]


def with_history(lines):
    """Lines with one more column: items of up to three rows before."""
    item = lines[0].split(",").index("item")
    items = [line.split(",")[item] for line in lines[1:]]
    seen = ["|".join(items[max(i - i % 4, 0) : i]) for i in range(len(items))]
    return [f"{line},{each}" for line, each in zip(lines, ["seen", *seen])]


def prepared(drifting, make_once, *, lists=None):
    def make(folder):
        lines = (drifting / "log.csv").read_text().splitlines()
        lines = {"tags": with_tags, "seen": with_history}.get(lists, list)(lines)
        (folder / "first.csv").write_text("\n".join(lines[:4001]) + "\n")
        (folder / "rest.csv").write_text("\n".join([lines[0], *lines[4001:]]) + "\n")
        table = ["prepare", "table", "--device", "cpu"]
        columns = ["--label", "click", "--categorical", ",".join(CATEGORICAL)]
        columns += ["--continuous", "price", "--freq-threshold", "2"]
        columns += ["--multi", lists, "--max-values", "3"] if lists else []
        columns += ["--share-embedding", "seen=item"] if lists == "seen" else []
        data = ["--out", str(folder / "data")]
        assert main([*table, str(folder / "first.csv"), *columns, *data]) == 0
        like = ["--like", str(folder / "data"), "--out", str(folder / "rest")]
        assert main([*table, str(folder / "rest.csv"), *like]) == 0
        features = yaml.safe_load((drifting / "log.csv.yaml").read_text())
        more = {"name": lists, "separator": "|", "max_values": 3}
        more |= {"table": "item"} if lists == "seen" else {"combiner": "sum"}
        features |= {"prepared": "data", "categorical": [*CATEGORICAL, *([more] if lists else [])]}
        (folder / "features.yaml").write_text(yaml.safe_dump(features))

    return make_once(f"offline_{lists or 'plain'}", make)


@pytest.fixture(scope="module")
def offline(drifting, make_once):
    """Two days prepared, the last day prepared like them, and a features file."""
    return prepared(drifting, make_once)


@pytest.fixture(scope="module")
def offline_lists(drifting, make_once):
    """The same with a multi-valued column."""
    return prepared(drifting, make_once, lists="tags")


@pytest.fixture(scope="module")
def offline_history(drifting, make_once):
    """The same with a history of items, which has the table of the items."""
    return prepared(drifting, make_once, lists="seen")


def options(values):
    return [word for name, value in values.items() for word in (f"--{name}", value)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model", "update", "lists", "layers"),
    [
        ("dcn", "dense", "", "--batch-norm --dropout 0.2 --activation dice"),
        ("deepfm", "exact", "_lists", ""),
        ("din", "dense", "_history", ""),
    ],
)
def test_the_first_scores_are_those_of_the_run(
    tmp_path, request, model, update, lists, layers, capsys
):
    offline = request.getfixturevalue(f"offline{lists}")
    tables = {"exact": "fused", "dense": "per_field"}[update]
    train = {"model": model, "batch-size": "256", "update": update, "epochs": "2"} | MODEL
    train |= {"tables": tables, "embedding-lr": "0.01", "out": str(tmp_path / "run")}
    train |= {"combiner": "sum"} if lists == "_lists" else {}
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
    with pytest.raises(InputError, match=r"full: .*max_rows allows 9"):
        start(settings_of(table={"max_rows": 9}), fitting)


def test_other_lists_are_refused(offline, run, settings_of, make_once, offline_lists):
    plain, listed = (load_features(each / "features.yaml") for each in (offline, offline_lists))
    *others, tags = listed.categorical
    user = dataclasses.replace(plain.categorical[0], lists=tags.lists)
    more = dataclasses.replace(plain, categorical=(user, *plain.categorical[1:]))
    with pytest.raises(InputError, match=r"'user' has one value .*; remove its `separator`"):
        OfflineStart(run, offline / "data", OnlineTrainer(settings_of(), more))
    train = ["train", str(offline_lists / "data"), "--model", "deepfm", "--batch-size", "1024"]
    train += ["--epochs", "1", *options(MODEL)]
    made = make_once("offline_lists_run", lambda folder: main([*train, "--out", f"{folder}/run"]))
    fewer = dataclasses.replace(tags, lists=None)
    for column, words in ((fewer, "several values .*; add its `separator`"), (tags, "mean, not s")):
        columns = dataclasses.replace(listed, categorical=(*others, column))
        with pytest.raises(InputError, match=words):
            OfflineStart(
                made / "run", offline_lists / "data", OnlineTrainer(settings_of(), columns)
            )


def test_other_shared_tables_are_refused(offline, offline_history, run, settings_of):
    plain, shared = (load_features(each / "features.yaml") for each in (offline, offline_history))
    alone = dataclasses.replace(shared.categorical[-1], table=None)
    alone = dataclasses.replace(shared, categorical=(*shared.categorical[:-1], alone))
    with pytest.raises(InputError, match=r"'seen' has the ids of 'item', not .*; write `table: it"):
        OfflineStart(run, offline_history / "data", OnlineTrainer(settings_of(), alone))
    user, *others = plain.categorical
    user = dataclasses.replace(user, table="item")
    more = dataclasses.replace(plain, categorical=(user, *others))
    with pytest.raises(InputError, match=r"'user' has the ids of 'user', not .*; remove its `tab"):
        OfflineStart(run, offline / "data", OnlineTrainer(settings_of(), more))
