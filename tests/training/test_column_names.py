"""Columns of any name: prepared, trained, exported and served."""

import csv
import json

import numpy as np
import pandas
import pytest

import cowclip_merlin as cc
from cowclip_merlin import compat
from cowclip_merlin.cli import main
from cowclip_merlin.training import evaluate_run
from cowclip_merlin.workflows import PreparedData, PrepareSettings, prepare

ROWS = 300
NAMES = {
    "spaces and punctuation": (
        "my label",
        ["user id", "user_id", "a|b", ".big", "_u", "a.b"],
        ["a price", "x$", "-", "x/y"],
    ),
    "letters and case": ("größe(%)", ["Straße", "用户", "User", "user"], ["größe", "X", "x"]),
    "python": ("lambda", ["self", "class", "categorical"], ["continuous"]),
}


def prepared(tmp_path, label, categorical, continuous):
    with (tmp_path / "log.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([label, *categorical, *continuous])
        for i in range(ROWS):
            ids = [f"v{(i * 7 + j) % 5}" for j in range(len(categorical))]
            writer.writerow([i % 2, *ids, *([i / 3] * len(continuous))])
    return prepare(
        PrepareSettings(
            files=(tmp_path / "log.csv",), out=tmp_path / "data", kind="table", label=label,
            categorical=categorical, continuous=continuous,
        )
    )  # fmt: skip


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("kind", "model", "tables"),
    [
        ("spaces and punctuation", "deepfm", "fused"),
        ("letters and case", "dcnv2", "per_field"),
        ("python", "deepfm", "fused"),
    ],
)
def test_a_column_may_have_any_name(kind, model, tables, tmp_path, capsys):
    data = prepared(tmp_path, *NAMES[kind])
    run, out = tmp_path / "run", tmp_path / "MODEL"
    assert main(["train", str(data.path), "--out", str(run), "--model", model, "--tables", tables,
                 "--batch-size", "64", "--mlp", "8", "--epochs", "1"]) == 0  # fmt: skip
    assert main(["export", str(run), str(data.path), "--out", str(out), "--ids"]) == 0
    told = capsys.readouterr().out
    columns = json.loads((out / "assets.extra/columns.json").read_text())["inputs"]
    assert list(columns.values()) == [*data.categorical, *data.continuous]
    for name, column in columns.items():
        assert name == column or f"{name} (column {column!r})" in told
    evaluate_run(run, data.path, predictions=tmp_path / "p.parquet")
    expected = pandas.read_parquet(tmp_path / "p.parquet").probability
    table = pandas.concat(map(pandas.read_parquet, data.files("test")))
    rows = {c: table[c].to_numpy() for c in columns.values()}
    np.testing.assert_allclose(_served(out, columns, rows), expected, atol=1e-6)
    again = cc.load_model(str(out))
    np.testing.assert_allclose(again.predict(rows, verbose=0)[:, 0], expected, atol=1e-6)


def _served(out, columns, rows):
    tf = compat.tensorflow()
    score = tf.saved_model.load(str(out)).signatures["serving_default"]
    whole = {c: np.issubdtype(rows[c].dtype, np.integer) for c in rows}
    given = {
        name: tf.constant(rows[c], tf.int64 if whole[c] else tf.float32)
        for name, c in columns.items()
    }
    return score(**given)["probability"].numpy()


@pytest.mark.thorough
def test_a_model_with_any_label_is_compiled_and_fitted(tmp_path):
    data = prepared(tmp_path, *NAMES["spaces and punctuation"])
    model = cc.models.deepfm(data.schema, mlp=(8,), embedding_dim=4)
    model.compile(optimizer=cc.CowClip(), loss="binary_crossentropy")
    table = pandas.read_parquet(data.files("train")[0])
    inputs = {c: table[c].to_numpy() for c in (*data.categorical, *data.continuous)}
    done = model.fit(inputs, table[data.label].to_numpy(), batch_size=64, verbose=0)
    assert np.isfinite(done.history["loss"]).all()


def test_equally_frequent_values_of_a_column_with_a_dot_are_in_order(tmp_path):
    data = prepared(tmp_path, *NAMES["spaces and punctuation"])
    values = cc.workflows.id_to_value(PreparedData.load(data.path), ".big")[3:]
    counts = cc.workflows.read_counts(data, ".big")["count"].to_pylist()[3:]
    assert sorted(zip(counts, values), key=lambda pair: (-pair[0], pair[1])) == list(
        zip(counts, values)
    )
