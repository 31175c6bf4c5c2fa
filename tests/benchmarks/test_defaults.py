"""The comparison with other packages' defaults; theirs train where OTHERS_PYTHON is set."""

import os
import sys
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cowclip_merlin.metrics import roc_auc
from cowclip_merlin.workflows import PrepareSettings, prepare

PYTHON = os.environ.get("OTHERS_PYTHON")
MASK = (1 << 64) - 1


@pytest.fixture(scope="session")
def others(load):
    return load("contestants.with_defaults")


def log_of(folder, rows=500, **more):
    """A prepared log in which a user, an item and a number tell the label."""
    draw = np.random.default_rng(1)
    user, item = draw.integers(0, 20, rows), draw.integers(0, 9, rows)
    age = draw.normal(size=rows)
    y = (draw.normal(size=20)[user] * draw.normal(size=9)[item] + age > 0).astype(int)
    file = folder / "log.csv"
    pd.DataFrame({"y": y, "user": user, "item": item, "age": age}).to_csv(file, index=False)
    columns = {"label": "y", "categorical": ("user", "item"), "continuous": ("age",)}
    return prepare(
        PrepareSettings(kind="table", files=(file,), out=folder / "log", **columns | more)
    )


def hash_of(words):
    """The hash of a few whole numbers, with Python's own."""
    found = 0
    for each in words:
        found = ((found ^ each) * 0x9E3779B97F4A7C15) & MASK
        found ^= found >> 32
    return found >> 8


@settings(max_examples=20)
@given(
    ids=st.lists(st.tuples(*[st.integers(0, 2**31 - 1)] * 3), min_size=1, max_size=5),
    bits=st.integers(8, 22),
)
def test_a_row_has_a_one_for_each_id_and_each_pair(others, ids, bits):
    numbers = np.arange(2 * len(ids), dtype=np.float32).reshape(-1, 2) / 7
    rows = others.Rows(np.array(ids, np.int32), numbers, np.zeros(0), np.full(3, 2**31 - 1))
    expected = np.zeros((len(ids), (1 << bits) + 2))
    for i, row in enumerate(ids):
        for group in ((0,), (1,), (2,), *combinations(range(3), 2)):
            expected[i, hash_of([*group, *(row[j] for j in group)]) % (1 << bits)] += 1
        expected[i, -2:] = numbers[i]
    np.testing.assert_array_equal(others.crossed(rows, bits).toarray(), expected)


def test_pairs_of_ids_rarely_share_a_hash_value(others):
    ids = np.stack(np.meshgrid(np.arange(300), np.arange(300)), axis=-1).reshape(-1, 2)
    found = others.hashed((3, 5), ids, others.BITS)
    # 90,000 of 2^22 values at random: 89,042 different ones are expected
    assert 88_800 < len(np.unique(found)) < 89_300


def test_a_tenth_of_the_rows_is_held_out(others):
    ids = np.arange(50, dtype=np.int32)[:, None]
    rows = others.Rows(ids, np.zeros((50, 0)), np.arange(50) % 2, np.array([50]))
    fitted, scored = others.held_out(rows, 7)
    assert len(scored.label) == 5 and len(fitted.label) == 45
    assert sorted([*fitted.ids[:, 0], *scored.ids[:, 0]]) == [*range(50)]
    assert (scored.label == scored.ids[:, 0] % 2).all()
    assert (scored.ids != others.held_out(rows, 8)[1].ids).any()


def test_vowpal_wabbit_reads_a_namespace_for_each_column(others):
    numbers = np.array([[0.5], [0.25]], np.float32)
    ids = np.array([[3, 4], [0, 9]], np.int32)
    rows = others.Rows(ids, numbers, np.array([1.0, 0.0]), np.array([9, 10]))
    lines = ["1 |a 3 |b 4 |N0 x:0.5", "-1 |a 0 |b 9 |N0 x:0.25"]
    assert [*others._lines(rows)] == lines
    test = others.Rows(ids, numbers, np.zeros(0), np.array([9, 10]))
    assert [*others._lines(test)] == [line.lstrip("-1") for line in lines]


@pytest.mark.runs
@pytest.mark.thorough
def test_ours_is_what_cowclip_train_trains(measured, tmp_path):
    data = log_of(tmp_path, 200)
    given = ("--data", data.path, "--work", tmp_path / "work")
    result, text = measured("defaults", "--contestants cowclip --seeds 1", *given)
    (row,) = result["results"]
    scores = pd.read_parquet(tmp_path / "work/cowclip-1.parquet")
    assert row["auc"] == round(roc_auc(scores["label"], scores["probability"]), 5)
    assert f"{100 * row['auc']:.2f}" in text and row["auc"] > 0.6
    assert result["log"] == "log" and result["rows"] == data.rows


@pytest.mark.system
def test_what_fails_is_told_in_one_line(refused, tmp_path):
    data = log_of(tmp_path)
    given = ("--data", data.path, "--work", tmp_path / "work", "--contestants", "fuxictr")
    code, told = refused("defaults", *given, "--python", sys.executable)
    assert code == 2 and told.startswith("error: fuxictr failed: ModuleNotFoundError")


def test_lists_are_refused(refused, tmp_path):
    data = log_of(tmp_path, categorical=("user",), multi=("item",))
    code, told = refused("defaults", "--data", data.path, "--contestants", "cowclip")
    assert code == 2 and "prepare it without them" in told


@pytest.mark.system
@pytest.mark.skipif(not PYTHON, reason="OTHERS_PYTHON is not set: see benchmarks/defaults.py")
def test_every_other_package_learns(measured, load, tmp_path):
    names = ",".join(load("contestants.with_defaults").CONTESTANTS)
    given = ("--data", log_of(tmp_path, 3000).path, "--work", tmp_path / "work", "--python", PYTHON)
    result, text = measured("defaults", f"--contestants {names} --seeds 1", *given)
    for row in result["results"]:
        assert row["auc"] > 0.6 and row["contestant"] in text, row
    assert {"lightgbm", "scikit-learn", "vowpalwabbit", "fuxictr"} <= result["versions"].keys()
