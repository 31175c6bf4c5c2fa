"""A log in which some fields are crosses of others, so that most ids are rare."""

import json

import numpy as np
import pandas as pd
import pytest

from cowclip_merlin.synthetic.criteo_log import generate
from cowclip_merlin.synthetic.ground_truth import (
    CARDINALITIES,
    CRITEO_ROWS,
    CROSSED,
    MISSING_IDS,
    GroundTruth,
    GroundTruthSettings,
)

LONG_TAILS = sorted([*CROSSED.crosses, *CROSSED.exponents])
ROWS = 1_000_000


@pytest.fixture(scope="module")
def counts():
    """How often each id of a field occurs, by number of the field."""
    ids = GroundTruth(ROWS, 3, CROSSED).ids(np.arange(ROWS, dtype=np.uint64))
    columns = (column[column > 0] for column in ids.T)
    return {f: np.unique(column, return_counts=True)[1] for f, column in enumerate(columns, 1)}


@pytest.mark.thorough
def test_ids_per_row_and_rare_ids_are_near_those_of_criteo(counts):
    """In Criteo's log about 0.80 of the ids occur once, and 0.97 fewer than 10 times."""
    everything = np.concatenate(list(counts.values()))
    assert len(everything) / ROWS == pytest.approx(sum(CARDINALITIES) / CRITEO_ROWS, rel=0.05)
    assert 0.70 < (everything == 1).mean() < 0.75
    assert 0.92 < (everything < 10).mean() < 0.94


@pytest.mark.thorough
@pytest.mark.parametrize("number", LONG_TAILS)
def test_the_largest_fields_are_as_large_as_those_of_criteo(counts, number):
    count = counts[number]
    of_criteo = CARDINALITIES[number - 1] / CRITEO_ROWS
    assert len(count) / ROWS == pytest.approx(of_criteo, rel=0.12)
    assert 0.68 < (count == 1).mean() < 0.80
    assert 0.93 < (count < 10).mean() < 0.98


def test_an_id_is_a_function_of_its_parents(tmp_path):
    log = generate(tmp_path / "log", rows=20_000, seed=2, ground_truth=CROSSED)
    frame = pd.read_csv(tmp_path / "log", sep="\t", header=None, dtype=str, na_filter=False)
    for child, parents in CROSSED.crosses.items():
        assert log.crosses[f"C{child}"] == [f"C{parent}" for parent in parents]
        there = frame[frame[13 + child] != ""]
        assert abs(len(there) / len(frame) - 1 + MISSING_IDS[child]) < 0.01
        ids = there.groupby([13 + parent for parent in parents])[13 + child]
        assert ids.nunique().max() == 1
        assert there[13 + child].nunique() > 0.95 * ids.ngroups  # few combinations collide
        for parent in parents:  # none is superfluous
            others = [13 + each for each in parents if each != parent]
            assert there.groupby(others)[13 + child].nunique().max() > 1
    assert json.loads((tmp_path / "log.json").read_text())["crosses"] == log.crosses


def test_any_chunk_size_gives_the_same_log(tmp_path):
    for name, chunk in (("a", 1000), ("b", 77)):
        generate(tmp_path / name, rows=1000, seed=1, ground_truth=CROSSED, chunk_rows=chunk)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_other_fields_are_as_without_crosses():
    rows = np.arange(1000, dtype=np.uint64)
    crossed = GroundTruth(1000, 4, CROSSED).ids(rows)
    plain = GroundTruth(1000, 4, GroundTruthSettings()).ids(rows)
    same = [f for f in range(26) if (crossed[:, f] == plain[:, f]).all()]
    assert same == [f for f in range(26) if f + 1 not in LONG_TAILS]


@pytest.mark.one_case
@pytest.mark.parametrize("number", LONG_TAILS)
def test_effects_without_a_table_are_those_of_the_table(number):
    f, ids = number - 1, np.array([0, 1, 700, 3, 3])
    plain, crossed = (GroundTruth(1000, 4, each) for each in (GroundTruthSettings(), CROSSED))
    assert f in plain.effects and f not in crossed.effects
    np.testing.assert_array_equal(crossed.effects_of(f, ids), plain.effects[f][ids])
    np.testing.assert_array_equal(crossed.latents_of(f, ids), plain.latent[f][ids])
