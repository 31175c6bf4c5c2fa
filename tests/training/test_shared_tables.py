"""Columns that share a table: the command DIN, warm starts and pretrained vectors."""

import shutil

import numpy as np
import pandas as pd
import pytest

from cowclip_merlin.errors import InputError
from cowclip_merlin.training import RunSettings, load_run, train
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


def test_derived_data_refuse_shared_columns(folder, tmp_path):
    from cowclip_merlin.experiments.on_data.derived_data import derive_data
    from cowclip_merlin.experiments.on_data.plan import DataVariant

    data = PreparedData.load(folder / "DATA")
    assert derive_data(data, DataVariant(), tmp_path) is data
    with pytest.raises(InputError, match="column 'seen' shares a table"):
        derive_data(data, DataVariant(keep_top=3), tmp_path / "derived")
    assert not (tmp_path / "derived").exists()


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
def test_a_shared_table_starts_with_vectors_and_stays_frozen(folder, tmp_path):
    vectors = np.random.default_rng(7).normal(size=(ITEMS, 4)).astype("f4")
    frame = pd.DataFrame({"seen": [f"i{i}" for i in range(ITEMS)], "v": list(vectors)})
    frame.to_parquet(tmp_path / "items.parquet")
    given = {"tables": "per_field", "update": "exact", "freeze_embeddings": "item", "epochs": 1}
    start = {"pretrained_embeddings": f"seen={tmp_path}/items.parquet"}
    auc = run(folder, "FROZEN", **start, **given)[-1]["test_auc"]
    fused = run(folder, "FUSED", **start, **given | {"tables": "fused"})[-1]["test_auc"]
    assert fused == pytest.approx(auc, abs=1e-6)
    data = PreparedData.load(folder / "DATA")
    block = load_run(folder / "FROZEN", data.path).blocks[0]
    table = block.embedding.tables[list(data.tables).index("item")].numpy()
    for value, i in value_to_id(data, "item").items():
        np.testing.assert_array_equal(table[i], vectors[int(value[1:])])
    both = f"seen={tmp_path}/items.parquet,item={tmp_path}/items.parquet"
    with pytest.raises(InputError, match="'seen' and 'item' share a table; give it one file"):
        run(folder, "BOTH", pretrained_embeddings=both)
    with pytest.raises(InputError, match="names the columns of all tables"):
        run(folder, "ALL", **given | {"freeze_embeddings": "user,seen"})
