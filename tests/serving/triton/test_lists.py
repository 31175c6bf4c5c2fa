"""Models for Triton of logs with lists: probabilities as by `cowclip score`, and refusals."""

import random
import shutil
import sys
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import served
from hypothesis import given
from hypothesis import strategies as st

from cowclip_merlin import compat
from cowclip_merlin.cli import main
from cowclip_merlin.serving.triton.model import lengths_of
from cowclip_merlin.serving.triton.raw_value_model import cut, vocabulary, without_missing
from cowclip_merlin.workflows.raw.log_format import LogFormat

tf = compat.tensorflow()

LISTS = {"tags seen": pa.list_(pa.string()), "genres": pa.list_(pa.string())}
TYPES = {"user": pa.string(), **LISTS, "price": pa.float64()}
NUMBERS = [None, 0.0, -3.5, 1e9]


def raw_rows(count, seed, *, values=20):
    """Rows with missing values, repeats, long and empty lists; more `values` are unknown ones."""
    draw = random.Random(seed)

    def several(most):
        return [draw.choice([None, "", *(f"v{draw.randrange(values)}" for _ in range(6))])
                for _ in range(draw.randint(0, most))]  # fmt: skip

    return [
        {
            "user": draw.choice([None, *"abc"]),
            "tags seen": draw.choice([None, several(9)]),
            "genres": several(3),
            "price": draw.choice(NUMBERS),
        }
        for _ in range(count)
    ]


def as_request(row):
    """A row as a client sends it: "" and NaN are missing values, a missing list is empty."""
    lists = {name: [value or "" for value in row[name] or []] for name in LISTS}
    return {
        "user": row["user"] or "",
        "price": np.nan if row["price"] is None else row["price"],
        **lists,
    }


def write_log(path, rows, *, labels):
    table = pa.Table.from_pylist(rows, pa.schema(TYPES))
    if labels:
        table = table.append_column("y", pa.array([i % 2 for i in range(len(rows))]))
    pq.write_table(table, path)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A repository, after DATA and RUN were deleted; new rows, and what `score` gives them."""
    folder = tmp_path_factory.mktemp("lists")
    data, run, repo, scores = (str(folder / name) for name in ("DATA", "RUN", "REPO", "s.parquet"))
    rows = raw_rows(80, 2, values=30)
    write_log(folder / "log.parquet", raw_rows(300, 1), labels=True)
    write_log(folder / "new.parquet", rows, labels=False)
    names = ["--label", "y", "--categorical", "user", "--multi", ",".join(LISTS)]
    names += ["--continuous", "price", "--max-values", "4", "--keep-values", "last"]
    names += ["--share-embedding", "genres=tags seen"]
    small = ["--model", "deepfm", "--batch-size", "64", "--base-batch-size", "16", "--mlp", "8"]
    small += ["--epochs", "2", "--combiner", "tags seen=sqrtn,genres=sum"]
    for command in (
        ["prepare", "table", str(folder / "log.parquet"), "--out", data, *names],
        ["train", data, "--out", run, *small],
        ["score", run, str(folder / "new.parquet"), "--out", scores],
        ["export", run, data, "--out", repo, "--triton", "--max-batch-size", "50"],
    ):
        assert main(command) == 0
    for name in ("DATA", "RUN"):
        shutil.rmtree(folder / name)
    return SimpleNamespace(
        folder=folder / "REPO/ctr",
        rows=[as_request(row) for row in rows],
        expected=pandas.read_parquet(scores).probability.to_numpy(),
    )


@pytest.fixture
def serve(exported, monkeypatch):
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", None)  # put back at the end
    return lambda *batches: served.serve(exported.folder, "1", list(batches))


def test_raw_rows_get_the_probabilities_of_score(exported, serve):
    rows, draw = exported.rows, random.Random(3)
    assert np.ptp(exported.expected) > 1e-2
    assert any(len(row["tags seen"]) > 4 for row in rows), "max_values has an effect"
    cuts = sorted(draw.sample(range(1, 80), 9))
    requests = [rows[a:b] for a, b in pairwise([0, *cuts, 80])]
    batches = [requests[:1], requests[1:5], requests[5:]]
    got = [p for batch in serve(*batches) for request in batch for p in request]
    np.testing.assert_allclose(got, exported.expected, rtol=0, atol=1e-6)


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
    (told, right), (alone,) = serve([RIGHT | wrong, exported.rows[:3]], [RIGHT | wrong])
    with pytest.raises(ValueError, match=words):
        raise ValueError(told)
    assert alone == told
    np.testing.assert_allclose(right, exported.expected[:3], rtol=0, atol=1e-6)


def test_more_rows_than_the_largest_batch_are_refused(exported, serve):
    ((told, _),) = serve([exported.rows[:51], exported.rows[:50]])
    assert told == "51 rows; give at most 50"


def test_a_column_with_the_name_of_an_input_is_refused(tmp_path, capsys):
    table = {"y": [0, 1] * 50, "tags": [["a"]] * 100, "tags__values": ["b"] * 100}
    pq.write_table(pa.table(table), tmp_path / "log.parquet")
    data, run = str(tmp_path / "DATA"), str(tmp_path / "RUN")
    names = ["--label", "y", "--categorical", "tags__values", "--multi", "tags"]
    assert main(["prepare", "table", str(tmp_path / "log.parquet"), "--out", data, *names]) == 0
    small = ["--mlp", "4", "--epochs", "1", "--batch-size", "64", "--base-batch-size", "16"]
    assert main(["train", data, "--out", run, "--model", "deepfm", *small]) == 0
    capsys.readouterr()
    assert main(["export", run, data, "--out", str(tmp_path / "REPO"), "--triton"]) == 2
    told = capsys.readouterr().err
    assert "column 'tags__values' has the name of an input for the lists of 'tags'" in told
    assert not (tmp_path / "REPO").exists()


TEXTS = st.lists(st.lists(st.sampled_from(["", "v1", "v2", "new"]), max_size=5), max_size=6)


@given(TEXTS, st.integers(0, 3), st.sampled_from(["first", "last"]))
def test_lists_are_cut_as_prepare_cuts_them(rows, most, keep):
    """From offsets to ids, against plain Python."""
    log_format = LogFormat(kind="table", label="y", categorical=("x",), multi={"x": "|"},
                           max_values=most, keep_values=keep)  # fmt: skip
    values = np.array([value for row in rows for value in row], object)
    lengths = lengths_of(np.cumsum([0, *map(len, rows)]), values, "x")
    assert lengths.tolist() == [len(row) for row in rows]
    texts = tf.constant(values, tf.string)
    ids = vocabulary([None, None, None, "v1", "v2"]).lookup(texts)
    expected = [[{"v1": 3, "v2": 4}.get(value, 2) for value in row if value] for row in rows]
    if most:
        expected = [row[:most] if keep == "first" else row[-most:] for row in expected]
    assert cut(without_missing(texts, ids, lengths), log_format).to_list() == expected
