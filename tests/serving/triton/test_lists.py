"""Models for Triton of logs with lists: what they refuse, and how lists are cut."""

import random
import sys
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import served
from hypothesis import given
from hypothesis import strategies as st

from cowclip_merlin import compat
from cowclip_merlin.cli import main
from cowclip_merlin.serving.raw_value_model import cut, vocabulary, without_missing
from cowclip_merlin.workflows.raw.log_format import LogFormat

tf = compat.tensorflow()


def raw_rows(count, seed):
    """Rows with missing values, repeats, long and empty lists."""
    draw = random.Random(seed)

    def several(most):
        return [draw.choice(["", *"abcdef"]) for _ in range(draw.randint(0, most))]

    return [
        {
            "user": draw.choice(["", *"abc"]),
            "tags seen": several(9),
            "genres": several(3),
            "price": draw.choice([0.0, -3.5, 1e9]),
        }
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A model of a repository, and rows."""
    folder, rows = tmp_path_factory.mktemp("lists"), raw_rows(300, 1)
    labeled = [row | {"y": i % 2} for i, row in enumerate(rows)]
    pq.write_table(pa.Table.from_pylist(labeled), folder / "log.parquet")
    data, run, repo = (str(folder / name) for name in ("DATA", "RUN", "REPO"))
    names = ["--label", "y", "--categorical", "user", "--continuous", "price"]
    names += ["--multi", "tags seen,genres"]
    small = ["--model", "deepfm", "--batch-size", "64", "--base-batch-size", "16", "--mlp", "8"]
    for command in (
        ["prepare", "table", str(folder / "log.parquet"), "--out", data, *names],
        ["train", data, "--out", run, *small, "--epochs", "1"],
        ["export", run, data, "--out", repo, "--triton", "--max-batch-size", "50"],
    ):
        assert main(command) == 0
    return SimpleNamespace(folder=folder / "REPO/ctr", rows=rows)


@pytest.fixture
def serve(exported, monkeypatch):
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", None)  # put back at the end
    return lambda *batches: served.serve(exported.folder, "1", list(batches))


RIGHT = {
    "user": ["a", ""], "price": [1.0, 2.0], "tags seen__values": ["v1", "v2", "v3"],
    "tags seen__offsets": [0, 3, 3], "genres__values": [], "genres__offsets": [0, 0, 0],
}  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"tags seen__offsets": [0, 1, 2]}, "tags seen__offsets must begin with 0.* end with 3"),
        ({"tags seen__offsets": []}, "tags seen__offsets must begin"),
        ({"tags seen__offsets": [0, 4, 3]}, "never fall"),
        ({"genres__offsets": [0, 0]}, "user has 2 rows, but genres has 1"),
        ({"price": [1.0]}, "user has 2 rows, but price has 1"),
        ({"price": [1.0, np.inf]}, "price is infinite"),
    ],
)
def test_a_wrong_request_gets_an_error_and_others_their_answer(exported, serve, wrong, words):
    rows = exported.rows[:3]
    (told, right), (alone,), (wanted,) = serve([RIGHT | wrong, rows], [RIGHT | wrong], [rows])
    with pytest.raises(ValueError, match=words):
        raise ValueError(told)
    assert alone == told
    np.testing.assert_allclose(right, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("before", "after", "wrong"),
    [
        ('"price"', '"cost"', "inputs cost, price"),
        ("TYPE_FP64", "TYPE_FP32", "inputs price"),
        ("TYPE_INT32", "TYPE_STRING", "inputs genres__offsets, tags seen__offsets"),
        ('"probability"', '"buy"', "outputs buy, probability"),
    ],
)
def test_the_config_of_another_model_is_not_used(exported, serve, before, after, wrong):
    config = exported.folder / "config.pbtxt"
    text = config.read_text()
    try:
        config.write_text(text.replace(before, after))
        with pytest.raises(ValueError, match=f"{wrong}; .*config.pbtxt"):
            serve([])
    finally:
        config.write_text(text)


def test_more_rows_than_the_largest_batch_are_refused(exported, serve):
    ((told, _),) = serve([exported.rows[:51], exported.rows[:50]])
    assert told == "51 rows; give at most 50"


def test_a_column_with_the_name_of_an_input_is_refused(tmp_path, capsys):
    table = {"y": [0, 1] * 50, "tags": [["a"]] * 100, "tags__values": ["b"] * 100}
    pq.write_table(pa.table(table), tmp_path / "log.parquet")
    data, run = str(tmp_path / "DATA"), str(tmp_path / "RUN")
    names = ["--label", "y", "--categorical", "tags__values", "--multi", "tags"]
    assert main(["prepare", "table", str(tmp_path / "log.parquet"), "--out", data, *names]) == 0
    capsys.readouterr()
    assert main(["export", run, data, "--out", str(tmp_path / "REPO"), "--triton"]) == 2
    told = capsys.readouterr().err
    assert "column 'tags__values' has the name of an input for the lists of 'tags'" in told
    assert not (tmp_path / "REPO").exists()


TEXTS = st.lists(st.lists(st.sampled_from(["", "v1", "v2", "new"]), max_size=5), max_size=6)


@given(TEXTS, st.integers(0, 3), st.sampled_from(["first", "last"]))
def test_lists_are_cut_as_prepare_cuts_them(rows, most, keep):
    """Against plain Python."""
    log_format = LogFormat(kind="table", label="y", categorical=("x",), multi={"x": "|"},
                           max_values=most, keep_values=keep)  # fmt: skip
    values = np.array([value for row in rows for value in row], object)
    lengths = np.array([len(row) for row in rows])
    texts = tf.constant(values, tf.string)
    ids = vocabulary([None, None, None, "v1", "v2"]).lookup(texts)
    expected = [[{"v1": 3, "v2": 4}.get(value, 2) for value in row if value] for row in rows]
    if most:
        expected = [row[:most] if keep == "first" else row[-most:] for row in expected]
    assert cut(without_missing(texts, ids, lengths), log_format).to_list() == expected
