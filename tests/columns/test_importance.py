"""The AUC that a run loses with a shuffled column is that of raw rows with shuffled values."""

import numpy as np
import pandas as pd
import pytest
from data import ROLES, frame
from sklearn.metrics import roc_auc_score

import cowclip_merlin as cc
from cowclip_merlin.errors import InputError
from cowclip_merlin.training import Scorer

pytestmark = pytest.mark.runs
TARGETS = ROLES["labels"].columns
INPUTS = [name for role in ROLES.values() for name in role.columns if name not in (*TARGETS, "w")]


@pytest.fixture(scope="module")
def scorer(run):
    return Scorer(run.path)


def lost(scorer, rows, name, seed, repeat):
    """The obvious way: shuffle the raw values, score all rows, compute the AUC."""
    order = np.random.default_rng((seed, repeat)).permutation(len(rows))
    other = rows.assign(**{name: [rows[name].iloc[i] for i in order]})
    aucs = [
        roc_auc_score(
            rows.click.astype(int), scorer.score(each)[:, 0], sample_weight=rows.w.astype(float)
        )
        for each in (rows, other)
    ]
    return aucs[0] - aucs[1]


def test_it_is_that_of_shuffled_raw_values(scorer):
    rows = frame()
    known = rows[rows.click.notna()]
    found = cc.importance(scorer, rows, seed=5, repeats=2)
    assert set(found.column) == set(INPUTS) and found.auc_lost.is_monotonic_decreasing
    assert found.auc_lost.iloc[0] > 0.02 and found.attrs["rows"] == len(known)
    for each in found.itertuples():
        wanted = [lost(scorer, known, each.column, 5, k) for k in range(2)]
        assert each.auc_lost == pytest.approx(np.mean(wanted), abs=1e-6)
        assert each.std == pytest.approx(np.std(wanted, ddof=1), abs=1e-6)


def test_all_doors_give_the_same(run, scorer, data, logs):
    test = frame()[-120:]
    usual = cc.importance(run.path)
    assert usual.attrs["rows"] == len(test) and usual["std"].isna().all()
    for each in (cc.importance(scorer, test), cc.importance(run.path, data.path)):
        pd.testing.assert_frame_equal(each, usual, atol=1e-6)
    whole = cc.importance(scorer, logs / "log.csv")
    pd.testing.assert_frame_equal(whole, cc.importance(scorer, frame()), atol=1e-6)


@pytest.mark.parametrize("rows", ["frame", "folder"])
def test_some_rows_are_chosen_at_random(scorer, data, rows):
    given = frame() if rows == "frame" else data.path
    first, again, other = (cc.importance(scorer, given, max_rows=90, seed=s) for s in (1, 1, 2))
    assert first.attrs["rows"] == 90
    pd.testing.assert_frame_equal(first, again)
    assert first.attrs["auc"] != other.attrs["auc"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"repeats": 0}, "`repeats` is 0"),
        ({"max_rows": 0}, "`max_rows` is 0"),
        ({"rows": frame()[INPUTS]}, "the frame has no column 'click'"),
        ({"rows": frame()[frame().click == 1]}, "the frame: all .* scored rows have the label 1"),
    ],
)
def test_wrong_input_is_refused(scorer, change, words):
    with pytest.raises(InputError, match=words):
        cc.importance(scorer, **{"rows": frame()} | change)


def test_another_folder_is_refused(scorer, plain):
    with pytest.raises(InputError, match="have other meanings than in"):
        cc.importance(scorer, plain.path)
