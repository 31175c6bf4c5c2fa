"""The generated log in Criteo's format, plain and with fields that are crosses of others."""

import gzip
import hashlib
import json

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from cowclip_merlin.synthetic import criteo_log
from cowclip_merlin.synthetic.criteo_log import (
    CARDINALITIES,
    CRITEO_ROWS,
    CROSSES,
    EXPONENTS,
    MISSING_IDS,
    MISSING_INTEGERS,
    GroundTruth,
    generate,
)


def read(path):
    return pd.read_csv(path, sep="\t", header=None, dtype=dict.fromkeys(range(14, 40), str))


def test_the_log_looks_like_criteo(tmp_path):
    log = generate(tmp_path / "log.txt", rows=20_000, seed=5)
    frame = read(tmp_path / "log.txt")
    assert frame.shape == (20_000, 40)
    assert frame[0].isin([0, 1]).all() and frame[0].mean() == log.click_rate
    assert abs(log.click_rate - 0.25) < 0.02
    for j, share in enumerate(MISSING_INTEGERS):
        assert abs(frame[1 + j].isna().mean() - share) < 0.02
        assert (frame[1 + j].dropna() % 1 == 0).all()
    for f in range(26):
        column = frame[14 + f]
        assert abs(column.isna().mean() - MISSING_IDS.get(f + 1, 0)) < 0.02
        assert column.dropna().str.fullmatch("[0-9a-f]{8}").all()
        assert column.nunique() <= CARDINALITIES[f]
    assert sum(frame[14 + f].nunique() for f in range(26)) == log.distinct_ids
    assert json.loads((tmp_path / "log.txt.json").read_text())["bayes_auc"] == log.bayes_auc


def test_frequencies_follow_the_power_law():
    truth = GroundTruth(1_000_000, 3)
    ids = truth.ids(np.arange(200_000, dtype=np.uint64))[:, 2]
    count = np.bincount(ids)[1:]
    # P(rank = k) is the integral of x^-1.15 over [k, k + 1), over that of [1, size + 1).
    edges = np.array([1.0, 2, 3, 11, 101]) ** -0.15
    size = truth.sizes[2] + 1.0
    present = 1 - MISSING_IDS[3]
    expected = present * (edges[:-1] - edges[1:]) / (1 - size**-0.15)
    got = [count[0], count[1], count[2:10].sum(), count[10:100].sum()]
    np.testing.assert_allclose(np.array(got) / ids.size, expected, rtol=0.03)


@pytest.mark.thorough
def test_any_chunk_size_gives_the_same_log(tmp_path):
    for name, chunk in (("a", 1000), ("b", 77), ("c", 10_000)):
        generate(tmp_path / name, rows=1000, seed=1, chunk_rows=chunk)
        crossed = {"crossed": True, "chunk_rows": chunk}
        generate(tmp_path / f"crossed {name}", rows=1000, seed=1, **crossed)
    assert len({(tmp_path / f"crossed {name}").read_bytes() for name in "abc"}) == 1
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b == c
    generate(tmp_path / "d.gz", rows=1000, seed=1)
    assert gzip.decompress((tmp_path / "d.gz").read_bytes()) == a
    generate(tmp_path / "e.gz", rows=1000, seed=1)  # no name and no time in it
    assert (tmp_path / "d.gz").read_bytes() == (tmp_path / "e.gz").read_bytes()


def test_an_integer_and_an_id_are_printed_as_they_are_and_missing_ones_as_nothing(tmp_path):
    generate(tmp_path / "log", rows=500, seed=6)
    truth = GroundTruth(500, 6)
    integers = truth.integers(np.arange(500, dtype=np.uint64))
    lines = (tmp_path / "log").read_text().split("\n")
    assert lines.pop() == "" and len(lines) == 500
    for line, row in zip(lines, integers, strict=True):
        assert line.split("\t")[1:14] == ["" if x < 0 else str(x) for x in row]
        assert line.count("\t") == 39


def test_the_largest_seed(tmp_path):
    assert generate(tmp_path / "log", rows=10, seed=2**64 - 1).rows == 10


@pytest.mark.parametrize(
    ("seed", "digest"),
    [
        (5, "062a2ed7f33990336a4b4b12852aecf3ffa5ddcf9ffdad5e39bbf7bf005e40ab"),
        (7, "ef489e0fd0e1e5c15e90ff98688b1f24adadf36deb3d8933efe69d5ce3285518"),
    ],
)
def test_a_log_without_crosses_is_what_it_was_before_there_were_crosses(tmp_path, seed, digest):
    log = generate(tmp_path / "log", rows=2000, seed=seed)
    assert hashlib.sha256((tmp_path / "log").read_bytes()).hexdigest() == digest
    assert log.crosses == {}


def test_seeds_differ(tmp_path):
    for seed in (1, 2):
        generate(tmp_path / str(seed), rows=100, seed=seed)
    assert (tmp_path / "1").read_bytes() != (tmp_path / "2").read_bytes()


@pytest.mark.parametrize("crossed", [False, True])
def test_the_best_auc_is_that_of_the_true_probabilities(tmp_path, crossed):
    log = generate(tmp_path / "log", rows=5000, seed=4, crossed=crossed)
    truth = GroundTruth(5000, 4, crossed=crossed)
    rows = np.arange(5000, dtype=np.uint64)
    p = truth.probabilities(truth.ids(rows), truth.integers(rows))
    clicks = read(tmp_path / "log")[0]
    assert log.bayes_auc == pytest.approx(roc_auc_score(clicks, p), abs=1e-12)
    assert log.bayes_log_loss == pytest.approx(log_loss(clicks, p), abs=1e-12)
    # Calibrated: the labels are drawn from these probabilities.
    assert abs((clicks - p).mean()) < 4 * np.sqrt((p * (1 - p)).mean() / 5000)


def test_second_order_effects_are_between_fields(monkeypatch):
    for name, value in (("FIRST_ORDER_STD", 0), ("INTEGER_STD", 0), ("PAIRWISE_STD", 0.7)):
        monkeypatch.setattr(criteo_log, name, value)
    truth = GroundTruth(100_000, 2)
    rows = np.arange(200, dtype=np.uint64)
    ids = truth.ids(rows)
    p = truth.probabilities(ids, truth.integers(rows))
    logit = np.log(p / (1 - p))
    for row in range(200):
        vectors = [truth.latent[f][ids[row, f]].astype(float) for f in range(26)]
        pairs = sum(vectors[f] @ vectors[g] for f in range(26) for g in range(f))
        assert logit[row] == pytest.approx(truth.intercept + pairs, abs=1e-5)


LONG_TAILS = sorted([*CROSSES, *EXPONENTS])
MANY = 1_000_000


@pytest.fixture(scope="module")
def counts():
    """How often each id of a field occurs, by number of the field."""
    ids = GroundTruth(MANY, 3, crossed=True).ids(np.arange(MANY, dtype=np.uint64))
    columns = (column[column > 0] for column in ids.T)
    return {f: np.unique(column, return_counts=True)[1] for f, column in enumerate(columns, 1)}


@pytest.mark.thorough
def test_ids_per_row_and_rare_ids_are_near_those_of_criteo(counts):
    """In Criteo's log about 0.80 of the ids occur once, and 0.97 fewer than 10 times."""
    everything = np.concatenate(list(counts.values()))
    assert len(everything) / MANY == pytest.approx(sum(CARDINALITIES) / CRITEO_ROWS, rel=0.05)
    assert 0.70 < (everything == 1).mean() < 0.75
    assert 0.92 < (everything < 10).mean() < 0.94


@pytest.mark.thorough
@pytest.mark.parametrize("number", LONG_TAILS)
def test_the_largest_fields_are_as_large_as_those_of_criteo(counts, number):
    count = counts[number]
    of_criteo = CARDINALITIES[number - 1] / CRITEO_ROWS
    assert len(count) / MANY == pytest.approx(of_criteo, rel=0.12)
    assert 0.68 < (count == 1).mean() < 0.80
    assert 0.93 < (count < 10).mean() < 0.98


def test_an_id_is_a_function_of_its_parents(tmp_path):
    log = generate(tmp_path / "log", rows=20_000, seed=2, crossed=True)
    frame = pd.read_csv(tmp_path / "log", sep="\t", header=None, dtype=str, na_filter=False)
    for child, parents in CROSSES.items():
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


def test_other_fields_are_as_without_crosses():
    rows = np.arange(1000, dtype=np.uint64)
    crossed = GroundTruth(1000, 4, crossed=True).ids(rows)
    plain = GroundTruth(1000, 4).ids(rows)
    same = [f for f in range(26) if (crossed[:, f] == plain[:, f]).all()]
    assert same == [f for f in range(26) if f + 1 not in LONG_TAILS]


@pytest.mark.one_case
@pytest.mark.parametrize("number", LONG_TAILS)
def test_effects_without_a_table_are_those_of_the_table(number):
    f, ids = number - 1, np.array([0, 1, 700, 3, 3])
    plain, crossed = (GroundTruth(1000, 4, crossed=each) for each in (False, True))
    assert f in plain.effects and f not in crossed.effects
    np.testing.assert_array_equal(crossed.effects_of(f, ids), plain.effects[f][ids])
    np.testing.assert_array_equal(crossed.latents_of(f, ids), plain.latent[f][ids])
