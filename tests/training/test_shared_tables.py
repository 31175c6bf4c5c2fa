"""Runs on columns that share a table, and DIN: every way to train, evaluate and export."""

import csv
import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from tiers import thorough

import cowclip_merlin as cc
from cowclip_merlin import compat
from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import open_columns
from cowclip_merlin.online.events.features import CategoricalColumn, ContinuousColumn, LogFeatures
from cowclip_merlin.training import RunSettings, evaluate_run, load_run, train
from cowclip_merlin.training.build import build_model, build_optimizer
from cowclip_merlin.training.starting.warm_start import WarmStart
from cowclip_merlin.workflows import PreparedData, PrepareSettings, Recipe, prepare, value_to_id

SMALL = {"mlp": (8,), "batch_size": 64, "base_batch_size": 64, "epochs": 2, "embedding_dim": 4}
ITEMS = 12
COLUMNS = {"categorical": ("user", "item", "seen"), "continuous": ("age",)}


def log(rows=1000):
    """A log whose clicks depend on whether the item is in the history; some rows have none."""
    rng = np.random.default_rng(3)
    item = rng.integers(0, ITEMS, rows)
    seen = [rng.integers(0, ITEMS, size) for size in rng.integers(0, 9, rows)]
    click = np.array([i in each for i, each in zip(item, seen)]) ^ (rng.random(rows) < 0.1)
    return pd.DataFrame(
        {
            "user": rng.integers(0, 20, rows),
            "item": [f"i{i}" for i in item],
            "seen": ["|".join(f"i{i}" for i in each) for each in seen],
            "age": rng.random(rows),
            "y": click.astype(int),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    log().to_csv(folder / "log.csv", index=False)
    columns = {"label": "y", "categorical": ("user", "item"), "continuous": ("age",)}
    settings = {"kind": "table", "multi": ("seen",), "share_embedding": ("seen=item",), **columns}
    prepare(PrepareSettings(files=(folder / "log.csv",), out=folder / "DATA", **settings))
    return folder


def run(folder, name, **settings):
    settings = RunSettings(model=settings.pop("model", "din"), **SMALL | settings)
    return train(folder / "DATA", settings, out=folder / name)


@pytest.fixture(scope="module")
def auc(folder):
    return run(folder, "RUN")[-1]["test_auc"]


@pytest.mark.one_case
@pytest.mark.parametrize("model", ["deepfm", "din"])
def test_the_ways_to_train_agree(folder, model):
    auc = run(folder, f"dense-{model}", model=model, update="dense")[-1]["test_auc"]
    for i, more in enumerate(({"update": "exact"}, {"tables": "per_field"}, {"tables": "sharded"})):
        row = run(folder, f"{model}{i}", model=model, **more)[-1]
        assert row["test_auc"] == pytest.approx(auc, abs=1e-6)
    data = PreparedData.load(folder / "DATA")
    table = load_run(folder / f"dense-{model}", folder / "DATA").blocks[0].embedding.table
    assert table.shape[0] == sum(data.tables.values()) == (20 + 3) + (ITEMS + 3)


@pytest.mark.thorough
def test_a_resumed_run_ends_as_one_that_was_never_stopped(folder, auc):
    run(folder, "longer", epochs=1)
    settings = RunSettings(model="din", **SMALL)
    row = train(folder / "DATA", settings, out=folder / "longer", resume=True)[-1]
    assert row["test_auc"] == auc


def test_the_history_is_learned(folder):
    more = {"overrides": {"embedding_lr": 0.02, "dense_lr": 0.02}, "rule": "none", "epochs": 12}
    with_target = run(folder, "long", **more)[-1]["test_auc"]
    assert with_target > 0.65, "without the pair of item and history it is 0.5"


def test_scores_are_those_of_evaluate(folder, auc):
    assert evaluate_run(folder / "RUN", folder / "DATA").auc == auc
    scores = cc.score(folder / "RUN", folder / "log.csv")
    new = {"kind": "table", "like": folder / "DATA"}
    prepare(PrepareSettings(files=(folder / "log.csv",), out=folder / "NEW", **new))
    evaluate_run(folder / "RUN", folder / "NEW", predictions=folder / "p.parquet")
    np.testing.assert_array_equal(scores, pd.read_parquet(folder / "p.parquet").probability)


@pytest.mark.thorough
def test_an_exported_run_gives_the_same_probabilities(folder, auc, tmp_path, capsys):
    tf, data, out = compat.tensorflow(), PreparedData.load(folder / "DATA"), tmp_path / "MODEL"
    assert main(["export", str(folder / "RUN"), str(folder / "DATA"), "--out", str(out)]) == 0
    assert "  int64 [b, k], filled with 0: seen\n" in capsys.readouterr().out
    columns = open_columns(data, "test")
    lists = tf.cast(tf.RaggedTensor.from_row_lengths(*columns.column(2)), tf.int64)
    inputs = {
        name: tf.cast(columns.column(i)[0], tf.int64) for i, name in enumerate(("user", "item"))
    }
    inputs["age"] = tf.constant(columns.continuous[:, 0])
    evaluate_run(folder / "RUN", folder / "DATA", predictions=folder / "r.parquet")
    expected = pd.read_parquet(folder / "r.parquet").probability
    served = tf.saved_model.load(str(out)).signatures["serving_default"]
    found = served(seen=lists.to_tensor(), **inputs)["probability"]
    np.testing.assert_allclose(found, expected, rtol=2e-6)
    ragged = load_run(folder / "RUN", folder / "DATA")({**inputs, "seen": lists})
    np.testing.assert_allclose(np.reshape(ragged, -1), expected, rtol=2e-6)


def test_diagnostics_count_ids_of_both_columns(folder):
    settings = RunSettings(model="din", **SMALL)
    train(folder / "DATA", settings, out=folder / "watched", diagnostics_every=5)
    with (folder / "watched" / "diagnostics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["group"] for row in rows if row["scope"] == "field"} == {"user", "item"}


def test_din_says_what_it_needs(folder, tmp_path, capsys):
    words = ["prepare", "table", str(folder / "log.csv"), "--out", str(tmp_path / "DATA")]
    words += ["--label", "y", "--categorical", "user,item", "--multi", "seen"]
    assert main(words) == 0
    words = ["train", str(tmp_path / "DATA"), "--out", str(tmp_path / "RUN"), "--model", "din"]
    assert main([*words, "--batch-size", "64"]) == 2
    assert "--multi history --share-embedding history=item" in capsys.readouterr().err
    assert not (tmp_path / "RUN").exists()


def test_derived_data_refuse_shared_columns(folder, tmp_path):
    from cowclip_merlin.experiments.planning.planned_run import DataVariant
    from cowclip_merlin.experiments.running.derived_data import derive_data

    data = PreparedData.load(folder / "DATA")
    assert derive_data(data, DataVariant(), tmp_path) is data
    with pytest.raises(InputError, match="column 'seen' shares a table"):
        derive_data(data, DataVariant(keep_top=3), tmp_path / "derived")
    assert not (tmp_path / "derived").exists()


def test_a_stream_starts_only_from_columns_that_share_as_its_own(folder, auc):
    from cowclip_merlin.online.training.start import OfflineStart

    kinds = {"categorical": CategoricalColumn, "continuous": ContinuousColumn}
    named = {kind: tuple(kinds[kind](name=n) for n in names) for kind, names in COLUMNS.items()}
    trainer = SimpleNamespace(features=LogFeatures(label="label", time="time", **named))
    with pytest.raises(InputError, match=r"column 'seen' has the ids of 'item', .*`table: item`"):
        OfflineStart(folder / "RUN", folder / "DATA", trainer)


def test_a_run_starts_from_one_with_the_same_shared_columns(folder, auc, tmp_path):
    """A value of the shared table keeps its row, in both columns."""
    shutil.copy(folder / "log.csv", tmp_path / "log.csv")
    columns = {"label": "y", "categorical": COLUMNS["categorical"], "continuous": ("age",)}
    settings = {"kind": "table", "multi": ("seen",), **columns, "files": (tmp_path / "log.csv",)}
    settings |= {"recipe": Recipe(freq_threshold=60), "share_embedding": ("seen=item",)}
    new = prepare(PrepareSettings(out=tmp_path / "DATA", **settings))
    run = RunSettings(model="din", **SMALL | {"epochs": 1})
    train(new.path, run, out=tmp_path / "RUN", warm_start=folder / "RUN")
    before = PreparedData.load(folder / "DATA")
    start = WarmStart(folder / "RUN", new, run)
    model = build_model(run, run.hyperparameters("table"), new)
    optimizer = build_optimizer(run, run.hyperparameters("table"), new, steps=1)
    optimizer.create_state(model.trainable_variables)
    start.apply(model, optimizer)
    rows = model.blocks[0].embedding.table.numpy()
    old = load_run(folder / "RUN", before.path).blocks[0].embedding.table.numpy()
    offset = before.tables["user"], new.tables["user"]
    for value, id_ in value_to_id(new, "seen").items():
        there = value_to_id(before, "item")[value]
        np.testing.assert_array_equal(rows[offset[1] + id_], old[offset[0] + there])
    other = prepare(PrepareSettings(out=tmp_path / "OTHER", **settings | {"share_embedding": ()}))
    with pytest.raises(InputError, match="other columns share a table"):
        WarmStart(folder / "RUN", other, run)


@pytest.mark.thorough
@pytest.mark.parametrize("update", ["exact", thorough("dense"), thorough("lazy")])
def test_a_shared_table_starts_with_vectors_and_stays_frozen(folder, tmp_path, update):
    vectors = np.random.default_rng(7).normal(size=(ITEMS, 4)).astype("f4")
    frame = pd.DataFrame({"seen": [f"i{i}" for i in range(ITEMS)], "v": list(vectors)})
    frame.to_parquet(tmp_path / "items.parquet")
    given = {"tables": "per_field", "update": update, "freeze_embeddings": "item", "epochs": 1}
    start = {"pretrained_embeddings": f"seen={tmp_path}/items.parquet"}
    auc = run(folder, f"FROZEN-{update}", **start, **given)[-1]["test_auc"]
    fused = run(folder, f"FUSED-{update}", **start, **given | {"tables": "fused"})[-1]["test_auc"]
    assert fused == pytest.approx(auc, abs=1e-6)
    data = PreparedData.load(folder / "DATA")
    block = load_run(folder / f"FROZEN-{update}", data.path).blocks[0]
    table = block.embedding.tables[list(data.tables).index("item")].numpy()
    for value, i in value_to_id(data, "item").items():
        np.testing.assert_array_equal(table[i], vectors[int(value[1:])])
    both = f"seen={tmp_path}/items.parquet,item={tmp_path}/items.parquet"
    with pytest.raises(InputError, match="'seen' and 'item' share a table; give it one file"):
        run(folder, "BOTH", pretrained_embeddings=both)
    with pytest.raises(InputError, match="names the columns of all tables"):
        run(folder, "ALL", **given | {"freeze_embeddings": "user,seen"})
