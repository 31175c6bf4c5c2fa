"""Columns with a vector per row: loading, training, scoring and export."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiers import thorough

import cowclip_merlin as cc
from cowclip_merlin import compat
from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import DeviceData, open_columns
from cowclip_merlin.loading.columns import read_columns
from cowclip_merlin.online.replaying.predictions import PredictionFiles
from cowclip_merlin.training import RunSettings, evaluate_run, train
from cowclip_merlin.training.build import build_model
from cowclip_merlin.workflows import PreparedData, PrepareSettings, prepare

pytestmark = pytest.mark.runs
LENGTH = 4
RUN = RunSettings(
    model="deepfm", mlp=(8,), batch_size=64, base_batch_size=64, epochs=2, embedding_dim=4,
    overrides={"dense_lr": 0.01},
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("vectors"), np.random.default_rng(3)
    vectors = rng.normal(size=(1200, LENGTH)).astype("f4")
    y = (rng.random(1200) < 1 / (1 + np.exp(-3 * vectors[:, 1]))).astype(int)
    columns = {"user": rng.integers(0, 40, 1200), "age": rng.random(1200), "y": y}
    frame = pd.DataFrame(columns | {"text": list(vectors), "old": list(vectors[:, :2])})
    frame.to_parquet(folder / "log.parquet")
    settings = {"kind": "table", "label": "y", "categorical": ("user",), "continuous": ("age",)}
    settings |= {"files": (folder / "log.parquet",), "vector": ("text", "old")}
    prepare(PrepareSettings(out=folder / "DATA", **settings))
    return folder


@pytest.fixture(scope="module")
def data(folder):
    return PreparedData.load(folder / "DATA")


def written(data, split="train"):
    return pd.concat(map(pd.read_parquet, data.files(split)))


def test_vectors_are_loaded_behind_the_continuous_columns(data):
    rows = written(data)
    expected = np.hstack([rows[["age"]], np.stack(rows.text), np.stack(rows.old)])
    for found in (
        open_columns(data, "train"),
        open_columns(data, "train"),
        read_columns(data, "train"),
    ):
        np.testing.assert_array_equal(found.continuous, expected.astype("f4"))
    assert found.bytes_per_row == 4 * (1 + 1 + 1 + LENGTH + 2)


@pytest.mark.parametrize("model", ["deepfm", thorough("dcnv2"), thorough("wide_and_deep")])
@pytest.mark.parametrize("continuous", ["deep", "all"])
def test_the_numbers_of_a_vector_are_read_as_so_many_columns(data, folder, model, continuous):
    """The same weights give the same logits for vectors as for columns of single numbers."""
    settings = replace(RUN, model=model, continuous=continuous)
    values = settings.hyperparameters("criteo")
    one = build_model(settings, values, data)
    rows = written(data).head(50)
    numbers = np.hstack([rows[["age"]], np.stack(rows.text), np.stack(rows.old)]).astype("f4")
    names = ("age", *(f"n{i}" for i in range(LENGTH + 2)))
    several = build_model(settings, values, replace_columns(data, names))
    several.set_weights(one.get_weights())
    ids = {"user": rows.user.to_numpy()}
    text, old = (np.stack(rows[name]) for name in ("text", "old"))
    found = one(ids | {"age": numbers[:, 0], "text": text, "old": old}).numpy()
    expected = several(ids | {name: numbers[:, i] for i, name in enumerate(names)}).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    batch = DeviceData(open_columns(data, "train")).unpack(np.arange(50))
    logits = cc.models.logits(one, batch).numpy()
    np.testing.assert_allclose(1 / (1 + np.exp(-logits)), expected, rtol=1e-5)
    assert np.ptp(expected) > 1e-3


def replace_columns(data, names):
    ranges = dict.fromkeys(names, 0.0)
    statistics = replace(data.statistics, minimum=ranges, maximum=ranges)
    log_format = replace(data.log_format, continuous=names, vectors={})
    return replace(data, log_format=log_format, statistics=statistics)


@pytest.fixture(scope="module")
def run(folder):
    rows = train(folder / "DATA", RUN, out=folder / "RUN")
    return rows[-1]


def test_a_run_learns_from_vectors_and_all_ways_score_alike(folder, data, run):
    assert run["test_auc"] > 0.8
    result = evaluate_run(folder / "RUN", data.path, predictions=folder / "p.parquet")
    assert result.auc == run["test_auc"]
    streamed = train(folder / "DATA", RUN, out=folder / "S", data_memory=0.05)[-1]
    assert streamed["test_auc"] == run["test_auc"]
    raw = pd.read_parquet(folder / "log.parquet")
    scores = cc.score(folder / "RUN", raw)
    np.testing.assert_array_equal(cc.score(folder / "RUN", folder / "log.parquet"), scores)
    test = pd.read_parquet(folder / "p.parquet")
    assert np.isin(test.probability, scores).all()


def test_a_saved_model_takes_a_matrix(folder, data, run, capsys):
    words = ["export", str(folder / "RUN"), str(data.path), "--out", str(folder / "MODEL")]
    assert main(words) == 0
    assert f"float32 [b, {LENGTH}]: text" in capsys.readouterr().out
    tf = compat.tensorflow()
    served = tf.saved_model.load(str(folder / "MODEL")).signatures["serving_default"]
    rows = written(data, "test")
    given = {"user": tf.constant(rows.user, tf.int64), "age": tf.constant(rows.age, tf.float32)}
    given |= {name: tf.constant(np.stack(rows[name])) for name in ("text", "old")}
    evaluate_run(folder / "RUN", data.path, predictions=folder / "q.parquet")
    expected = pd.read_parquet(folder / "q.parquet").probability
    np.testing.assert_allclose(served(**given)["probability"], expected, rtol=1e-5)
    keras = cc.load_model(str(folder / "MODEL"))
    np.testing.assert_allclose(keras(given).numpy()[:, 0], expected, rtol=1e-5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not finite"):
        served(**given | {"text": given["text"] * np.nan})


def test_merlins_loader_gives_vectors_to_the_model(folder, data):
    from merlin.io import Dataset
    from merlin.models.tf import Loader

    dataset = Dataset(str(data.path / "train"), engine="parquet", schema=data.schema)
    loader = Loader(dataset, batch_size=64, shuffle=False)
    model = build_model(RUN, RUN.hyperparameters("criteo"), data)
    model.compile(cc.CowClip("adam", "adam"), "binary_crossentropy")
    assert np.isfinite(model.fit(loader, epochs=1, verbose=0).history["loss"]).all()
    rows = written(data).head(3)
    inputs = {name: np.stack(rows[name]) for name in ("text", "old")}
    inputs |= {"user": rows.user.to_numpy(), "age": rows.age.to_numpy()}
    expected = model(inputs).numpy()
    np.testing.assert_allclose(model.predict(loader, verbose=0)[:3], expected, rtol=1e-5)


def test_other_vectors_are_refused(folder, data, run, tmp_path):
    raw = pd.read_parquet(folder / "log.parquet").head(4)
    raw.at[2, "old"] = np.ones(3, "f4")
    with pytest.raises(InputError, match="row 2, counted from 0: old has 3 numbers, not 2"):
        cc.score(folder / "RUN", raw)
    file = data.files("test")[0]
    table = pq.read_table(file)
    short = pa.array([[1.0]] * len(table), pa.list_(pa.float32()))
    whole = table.set_column(table.column_names.index("text"), "text", short)
    chunk = replace(data, checksums={}, path=tmp_path, rows=data.rows)
    (tmp_path / "test").mkdir()
    pq.write_table(whole, tmp_path / "test" / file.name)
    with pytest.raises(InputError, match="'text' has a vector of 1 numbers, not 4"):
        read_columns(chunk, "test")


def replayed(folder, vectors, out):
    """Replay the whole log from the run, whose vectors the features file gives; the exit code."""
    features, log = folder / "f.yaml", folder / "events.parquet"
    text = "label: y\ntime: t\ncategorical: [user]\ncontinuous: [age]\nprepared: DATA\n"
    features.write_text(f"{text}vectors: {vectors}\n", encoding="utf-8")
    raw = pd.read_parquet(folder / "log.parquet")
    raw.assign(t=np.arange(len(raw)) * 200).to_parquet(log)
    words = ["online", "replay", str(log), "--features", str(features), "--out", str(out)]
    words += ["--model", "deepfm", "--mlp", "8", "--embedding-dim", "4", "--batch-size", "64"]
    words += ["--batch-days", "0", "--sync", "never"]
    return main([*words, "--start", str(folder / "RUN"), str(folder / "DATA")])


def test_a_stream_starts_with_a_run_that_has_vectors(folder, run, tmp_path):
    """The model of the start scores all events as `cowclip score` does."""
    vectors = "[{name: text, length: 4}, {name: old, length: 2}]"
    assert replayed(folder, vectors, tmp_path / "R") == 0
    found = PredictionFiles(tmp_path / "R" / "predictions", ("never",)).read()["never"]
    wanted = cc.score(folder / "RUN", pd.read_parquet(folder / "log.parquet"))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)
    assert np.ptp(wanted) > 0.5


@pytest.mark.parametrize(
    "vectors",
    [
        "[]",
        "[{name: text, length: 4}]",
        "[{name: text, length: 3}, {name: old, length: 2}]",
        "[{name: old, length: 2}, {name: text, length: 4}]",
    ],
)
def test_a_stream_needs_the_vectors_of_its_start(folder, run, tmp_path, capsys, vectors):
    assert replayed(folder, vectors, tmp_path / "R") == 2
    error = capsys.readouterr().err
    assert "DATA: its vectors are text (4), old (2), but those of the features file are" in error
    assert error.endswith("; give the same `vectors` in the same order\n")
