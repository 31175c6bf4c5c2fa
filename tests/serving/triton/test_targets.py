"""Models for Triton with several labels, and with vectors: values as by `cowclip score`."""

import sys

import numpy as np
import pandas as pd
import pytest
import served

from cowclip_merlin.cli import main

pytestmark = pytest.mark.runs
NAMES = {"probability_click": "click", "probability_bought it": "bought it",
         "prediction_seconds": "seconds"}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """DATA, RUN and REPO of a log with three labels and two columns of vectors."""
    folder, draw = tmp_path_factory.mktemp("targets"), np.random.default_rng(5)
    vectors = draw.normal(size=(400, 5)).astype("f4")
    click = (draw.random(400) < 1 / (1 + np.exp(-3 * vectors[:, 0]))).astype(int)
    bought = np.where(draw.random(400) < 0.3, None, click * (draw.random(400) < 0.5))
    seconds = np.where(click == 1, vectors[:, 1] + draw.random(400), np.nan)
    columns = {"user": [f"u{i}" for i in draw.integers(0, 30, 400)], "age": draw.random(400)}
    columns |= {"text": list(vectors), "old one": list(vectors[:, :2].astype("f8"))}
    labels = {"click": click, "bought it": bought, "seconds": seconds}
    pd.DataFrame(columns | labels).to_parquet(folder / "log.parquet")
    data, run, repo = (str(folder / name) for name in ("DATA", "RUN", "REPO"))
    words = ["--label", ",".join(labels), "--regression", "seconds", "--categorical", "user"]
    words += ["--continuous", "age", "--vector", "text,old one"]
    small = ["--model", "deepfm", "--batch-size", "64", "--mlp", "8", "--multi-task", "mmoe"]
    for command in (
        ["prepare", "table", str(folder / "log.parquet"), "--out", data, *words],
        ["train", data, "--out", run, *small],
        ["score", run, str(folder / "log.parquet"), "--out", str(folder / "scores.parquet")],
        ["export", run, data, "--out", repo, "--triton"],
    ):
        assert main(command) == 0
    return folder


@pytest.fixture
def serve(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", None)  # put back at the end
    return lambda *batches: served.serve(folder / "REPO" / "ctr", "1", list(batches))


def test_each_label_is_an_output_with_the_values_of_score(folder, serve):
    rows = pd.read_parquet(folder / "log.parquet").to_dict("records")
    expected = pd.read_parquet(folder / "scores.parquet")[list(NAMES)].to_numpy()
    assert (np.ptp(expected, axis=0) > 1e-2).all()
    broken = rows[1] | {"text": [0.0, 1.0, np.nan, 0.0, 0.0]}
    huge = rows[2] | {"text": [3e38] * 5}
    first, second, third = serve([rows[:1]], [rows[1:90], [broken]], [[huge], rows[90:]])
    answers = [first[0], second[0], third[1]]
    assert {tuple(each) for each in answers} == {tuple(NAMES.values())}
    found = [np.concatenate([each[name] for each in answers]) for name in NAMES.values()]
    np.testing.assert_allclose(np.stack(found, axis=1), expected, rtol=1e-5, atol=1e-6)
    assert second[1] == "text has a number that is not finite; give a whole vector"
    assert third[0] == "row 0 has a number too large for 32 bits"
