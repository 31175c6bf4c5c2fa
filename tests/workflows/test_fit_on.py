"""Rows that `prepare` learns from and splits by, beside what the authors' code does."""

import pandas as pd
import pytest
from pandas_reference import CATEGORIES, NUMBERS, assert_same, make, raw_frame, read

from cowclip_merlin.workflows import Recipe


@pytest.mark.thorough
def test_the_authors_encoders_see_the_test_rows(log, tmp_path):
    """Theirs: a number for each value of train and test together, ranges of both. Ours: train's."""
    theirs = make(log, tmp_path / "all", recipe=Recipe(fit_on="all"))
    ours, frame = make(log, tmp_path / "train"), raw_frame(log)
    assert ours.fingerprint != theirs.fingerprint
    test = read(theirs, "test"), read(ours, "test")
    for column in CATEGORIES:
        values = frame[column].nunique() + frame[column].isna().any()
        codes = pd.concat([read(theirs, split)[column] for split in ("train", "test")])
        assert codes.nunique() == values, "one to one with the values, as a LabelEncoder's"
        assert 2 not in set(codes)
    assert any(2 in set(test[1][column]) for column in CATEGORIES), "ours knows what is new"
    assert all(test[0][column].between(0, 1).all() for column in NUMBERS)
    assert "in train and test: " in (theirs.path / "summary.md").read_text()
    assert "in train: " in (ours.path / "summary.md").read_text()


@pytest.mark.thorough
def test_the_split_is_seeded_where_theirs_is_not(log, tmp_path):
    one, same, other = (make(log, tmp_path / str(i), seed=s) for i, s in enumerate((1, 1, 2)))
    assert_same(one, same)
    assert read(one, "test").label.tolist() != read(other, "test").label.tolist()
