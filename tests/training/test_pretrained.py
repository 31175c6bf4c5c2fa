"""Embeddings that start with given vectors, and embeddings that stay as they start."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import thorough

import cowclip_merlin as cc
from cowclip_merlin import compat, workers
from cowclip_merlin.contrib.diagnostics.probe import make_probe
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import DeviceData, open_columns
from cowclip_merlin.models.embedding import ShardedEmbedding
from cowclip_merlin.training import RunSettings, load_run, train
from cowclip_merlin.training.build import (
    build_model,
    build_optimizer,
    read_pretrained_rows,
    set_pretrained_rows,
)
from cowclip_merlin.training.starting.warm_start import WarmStart
from cowclip_merlin.training.train_step import make_train_step
from cowclip_merlin.workflows import PreparedData, PrepareSettings, prepare
from cowclip_merlin.workflows.prepared.counts import value_to_id

pytestmark = pytest.mark.runs
DIM = 4
RUN = RunSettings(
    model="deepfm", mlp=(8,), batch_size=64, base_batch_size=64, epochs=1, embedding_dim=DIM,
    overrides={"l2": 1e-2, "embedding_lr": 1e-2, "init_std": 0.1},
)  # fmt: skip
FROZEN = replace(RUN, tables="per_field", freeze_embeddings="item")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("pretrained"), np.random.default_rng(3)
    columns = {"user": rng.integers(0, 20, 900), "y": rng.integers(0, 2, 900)}
    columns |= {"item": [f"i{k}" for k in rng.integers(0, 30, 900)]}
    pd.DataFrame(columns).to_csv(folder / "log.csv", index=False)
    settings = {"kind": "table", "label": "y", "categorical": ("user", "item")}
    prepare(PrepareSettings(files=(folder / "log.csv",), out=folder / "DATA", **settings))
    items = [f"i{k}" for k in range(20, 50)]  # 10 of them are in the log
    vectors = rng.normal(size=(30, DIM)).astype("f4")
    pd.DataFrame({"item": items, "emb": list(vectors)}).to_parquet(folder / "items.parquet")
    users = pd.DataFrame({"user": np.arange(20), "v": list(rng.normal(size=(20, DIM)))})
    users.to_parquet(folder / "users.parquet")
    return folder


@pytest.fixture(scope="module")
def data(folder):
    return PreparedData.load(folder / "DATA")


def started(data, settings):
    model = build_model(settings, settings.hyperparameters("criteo"), data)
    set_pretrained_rows(model, read_pretrained_rows(settings, data))
    return model


def rows_of(model, data, column):
    """All embedding rows of a column, read by lookups."""
    layer, field = model.blocks[0].embedding, data.categorical.index(column)
    ids = np.zeros((data.cardinalities[column], len(data.categorical)), np.int64)
    ids[:, field] = np.arange(len(ids))
    return layer(cc.models.base.Ids(ids))[:, field].numpy()


@pytest.mark.parametrize("tables", ["fused", "per_field", "sharded"])
def test_rows_start_with_the_vectors_of_their_values(folder, data, tables):
    files = f"item={folder / 'items.parquet'},user={folder / 'users.parquet'}"
    settings = replace(RUN, tables=tables)
    random = build_model(settings, settings.hyperparameters("criteo"), data)
    model = started(data, replace(settings, pretrained_embeddings=files))
    if tables == "sharded":
        offsets = dict(zip(data.categorical, model.blocks[0].embedding.layout.offsets))

        def rows(model, column):
            table = model.blocks[0].embedding.table.numpy()
            return table[offsets[column] :][: data.cardinalities[column]]
    else:

        def rows(model, column):
            return rows_of(model, data, column)

    for column, file in (("item", "items"), ("user", "users")):
        frame = pd.read_parquet(folder / f"{file}.parquet")
        vectors = dict(zip(frame[column].astype(str), frame[frame.columns[1]]))
        expected = rows(random, column)
        for value, i in value_to_id(data, column).items():  # one by one
            if value in vectors:
                expected[i] = vectors[value]
        np.testing.assert_array_equal(rows(model, column), expected)
    for a, b in zip(random.blocks[0].wide.variables, model.blocks[0].wide.variables):
        np.testing.assert_array_equal(a, b)


def test_each_worker_sets_the_rows_of_its_shard(monkeypatch):
    fields, values = {"a": 5, "b": 7}, np.random.default_rng(0).normal(size=(3, DIM))
    found = np.empty((12, DIM))
    for rank in range(2):
        group = workers.Workers(rank, ("a:1", "b:1"))
        monkeypatch.setattr(workers, "current", lambda group=group: group)
        layer = ShardedEmbedding(fields, DIM, std=0.0, seed=1)
        layer.build(None)
        tf = compat.tensorflow()
        layer.set_rows(1, tf.constant([0, 3, 6], tf.int64), tf.constant(values, tf.float32))
        found[rank::2] = layer.table.numpy()
    expected = np.zeros((12, DIM))
    expected[[5, 8, 11]] = values
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@given(st.lists(st.integers(-3, 40), unique=True, max_size=20))
def test_ids_are_found_as_by_a_slow_reference(folder, data, numbers):
    known = value_to_id(data, "user")
    file = folder / "some.parquet"
    vectors = np.arange(len(numbers) * DIM, dtype="f4").reshape(-1, DIM)
    lists = pa.array(list(vectors), pa.list_(pa.float32()))
    pq.write_table(pa.table({"user": pa.array(numbers, pa.int64()), "v": lists}), file)
    (found,) = read_pretrained_rows(replace(RUN, pretrained_embeddings=f"user={file}"), data)
    expected = {known[str(n)]: v.tolist() for n, v in zip(numbers, vectors) if str(n) in known}
    assert dict(zip(found.ids.tolist(), found.vectors.tolist())) == expected
    assert (found.others, found.known) == (len(numbers) - len(expected), 20)


def test_a_value_without_text_has_no_id(folder, data):
    lists = pa.array([[1.0] * DIM] * 2)
    file = folder / "null.parquet"
    pq.write_table(pa.table({"item": ["i3", None], "v": lists}), file)
    (found,) = read_pretrained_rows(replace(RUN, pretrained_embeddings=f"item={file}"), data)
    assert found.ids.tolist() == [value_to_id(data, "item")["i3"]] and found.others == 1


def steps(model, optimizer, data, batches, after_each=lambda: None):
    columns = DeviceData(open_columns(data, "train"))
    loss_sum = compat.tensorflow().Variable(0.0, dtype="float64")
    step = make_train_step(model, optimizer, columns, loss_sum)
    for rows in batches:
        step(np.asarray(rows, np.int64))
        after_each()
    optimizer.flush()


@pytest.mark.parametrize("update", ["exact", thorough("dense"), thorough("lazy")])
def test_no_step_moves_a_frozen_row(folder, data, update):
    """Nor a statistic of the clip: it is that of the same model without the frozen column's rows.

    The reference trains all tables and puts the frozen rows back after each step. With L2 and
    moments of other rows only, the other weights must be the same.
    """
    files = f"item={folder / 'items.parquet'}"
    settings = replace(FROZEN, update=update, pretrained_embeddings=files)
    free = replace(settings, freeze_embeddings=None)
    values, rng = settings.hyperparameters("criteo"), np.random.default_rng(4)
    batches = [rng.integers(0, 800, 32) for _ in range(6)]
    models = []
    for each in (settings, free):
        model = started(data, each)
        optimizer = build_optimizer(each, values, data, steps=9)
        optimizer.create_state(model.trainable_variables)
        before = rows_of(model, data, "item").copy()

        def put_back(model=model, optimizer=optimizer, before=before):
            optimizer.flush()
            model.blocks[0].embedding.tables[1].assign(before)

        steps(model, optimizer, data, batches, *([put_back] if each is free else []))
        models.append((model, optimizer, before))
    (model, optimizer, before), (other, _, _) = models
    np.testing.assert_array_equal(rows_of(model, data, "item"), before)
    trained = [v for v in other.trainable_variables if "item_embeddings" not in v.name]
    for a, b in zip(model.trainable_variables, trained, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6, err_msg=a.name)
    moved = rows_of(model, data, "user") - rows_of(started(data, settings), data, "user")
    assert np.abs(moved).max() > 1e-3
    names = {v.name for v in optimizer.variables()}
    assert not [name for name in names if "item_embeddings" in name and "wide" not in name]


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("column", "update"), [("item", "exact"), ("user", "dense"), ("item", "lazy")]
)
def test_a_fused_table_freezes_as_tables_of_each_column_do(folder, data, update, column):
    """The same rows, first-order weights and norms of the clip, after steps with gaps."""
    rng, found = np.random.default_rng(4), []
    batches = [rng.integers(0, 800, 8) for _ in range(9)]
    for tables in ("per_field", "fused"):
        settings = replace(FROZEN, tables=tables, update=update, freeze_embeddings=column)
        settings = replace(settings, pretrained_embeddings=f"{column}={folder / column}s.parquet")
        model, values = started(data, settings), settings.hyperparameters("criteo")
        before = rows_of(model, data, column)
        optimizer = build_optimizer(settings, values, data, steps=9)
        optimizer.create_state(model.trainable_variables)
        cc.models.attach(model, optimizer)
        steps(model, optimizer, data, batches)
        np.testing.assert_array_equal(rows_of(model, data, column), before)
        norms = make_probe(model, optimizer, DeviceData(open_columns(data, "train")))(np.arange(50))
        names = np.array(norms.fields)[norms.field]
        assert set(names) == {"item", "user"} - {column}
        ids = np.stack([np.arange(20), np.arange(20)], axis=1)
        wide = model.blocks[0].wide(cc.models.base.Ids(ids)).numpy()
        arrays = [rows_of(model, data, name) for name in data.categorical]
        order = np.lexsort((norms.id, names))
        kinds = (norms.id, norms.cnt, norms.g_norm, norms.w_norm, norms.factor)
        found.append([*arrays, wide, *(each[order] for each in kinds)])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.one_case
@pytest.mark.parametrize("tables", ["per_field", "fused"])
def test_a_run_keeps_frozen_rows_and_resumes(folder, data, tables, tmp_path):
    files = f"item={folder / 'items.parquet'}"
    settings = replace(FROZEN, pretrained_embeddings=files, update="exact", epochs=2, tables=tables)
    train(data.path, settings, out=tmp_path / "WHOLE")
    assert "pretrained embeddings of item: for 10 of 30 values" in (
        (tmp_path / "WHOLE" / "train.log").read_text(encoding="utf-8")
    )
    expected = rows_of(started(data, settings), data, "item")
    whole = load_run(tmp_path / "WHOLE", data.path)
    np.testing.assert_array_equal(rows_of(whole, data, "item"), expected)
    copy = Path(tmp_path / "moved.parquet")
    copy.write_bytes((folder / "items.parquet").read_bytes())
    settings = replace(settings, pretrained_embeddings=f"item={copy}")
    train(data.path, replace(settings, epochs=1), out=tmp_path / "PARTS")
    copy.unlink()  # the checkpoint has its vectors
    train(data.path, settings, out=tmp_path / "PARTS", resume=True)
    for a, b in zip(load_run(tmp_path / "PARTS", data.path).weights, whole.weights, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.one_case
@pytest.mark.parametrize("tables", ["per_field", "fused"])
def test_a_saved_model_keeps_frozen_columns(data, tmp_path, tables):
    model = started(data, replace(FROZEN, tables=tables))
    model.save(str(tmp_path / "model"))
    loaded = cc.load_model(str(tmp_path / "model"))
    assert [v.name for v in loaded.non_trainable_variables] == [
        v.name for v in model.non_trainable_variables
    ]
    inputs = {"user": np.array([3, 4]), "item": np.array([5, 6])}
    np.testing.assert_array_equal(loaded(inputs), model(inputs))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"freeze_embeddings": "item", "tables": "per_field"}, "'item' of `freeze_embeddings`"),
        ({"pretrained_embeddings": "item=v.parquet"}, "both give embeddings their start"),
    ],
)
def test_a_start_from_another_run_refuses_them(folder, data, more, message):
    if not (folder / "PLAIN").exists():
        train(data.path, RUN, out=folder / "PLAIN")
    with pytest.raises(InputError, match=message):
        WarmStart(folder / "PLAIN", data, replace(RUN, **more))
