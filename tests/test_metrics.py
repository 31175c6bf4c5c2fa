import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from cowclip_merlin.metrics import (
    auc_difference,
    auc_standard_error,
    calibration,
    grouped_auc,
    log_loss,
    log_loss_and_entropy,
    normalized_entropy,
    reliability,
    roc_auc,
)


def delong(y, *scores):
    """Covariance matrix of the AUCs of these scores, pair by pair as in DeLong et al."""
    wins = [[[float(a > b) + 0.5 * (a == b) for b in p[y == 0]] for a in p[y == 1]] for p in scores]
    of_positives = np.mean(wins, axis=2)  # [models, positives]
    of_negatives = np.mean(wins, axis=1)
    return np.atleast_2d(
        np.cov(of_positives) / of_positives.shape[1] + np.cov(of_negatives) / of_negatives.shape[1]
    )


@settings(max_examples=100)
@given(n=st.integers(4, 60), levels=st.integers(1, 12), seed=st.integers(0, 2**32 - 1))
def test_standard_errors_equal_those_of_all_pairs(n, levels, seed):
    rng = np.random.default_rng(seed)
    y = np.append([0, 0, 1, 1], rng.integers(0, 2, n - 4))
    a, b = rng.integers(0, levels + 1, (2, n)) / levels
    expected = delong(y, a, b)
    assert auc_standard_error(y, a) == pytest.approx(expected[0, 0] ** 0.5, abs=1e-12)
    difference, error = auc_difference(y, a, b)
    assert difference == roc_auc(y, a) - roc_auc(y, b)
    variance = expected[0, 0] + expected[1, 1] - 2 * expected[0, 1]
    assert error == pytest.approx(max(variance, 0) ** 0.5, abs=1e-7)


def test_standard_error_is_the_spread_over_samples():
    rng = np.random.default_rng(5)
    y = rng.integers(0, 2, (400, 500))
    a = y + rng.normal(size=y.shape)
    b = a + rng.normal(scale=0.5, size=y.shape)
    aucs = np.array([[roc_auc(*row[:2]), roc_auc(row[0], row[2])] for row in zip(y, a, b)])
    errors = np.mean([auc_standard_error(*row) for row in zip(y, a)])
    assert errors == pytest.approx(aucs[:, 0].std(), rel=0.12)
    errors = np.mean([auc_difference(*row)[1] for row in zip(y, a, b)])
    assert errors == pytest.approx((aucs[:, 0] - aucs[:, 1]).std(), rel=0.12)


def test_one_row_of_a_class_has_no_standard_error():
    assert np.isnan(auc_standard_error([0, 1, 0], [0.1, 0.2, 0.3]))
    assert np.isnan(auc_difference([0, 1, 0], [0.1, 0.2, 0.3], [0.1, 0.2, 0.3])[1])


def test_log_loss_is_finite_at_zero_and_one():
    assert log_loss([0, 1], np.float32([1.0, 0.0])) == pytest.approx(-np.log(2**-23), rel=1e-6)


def random_rows(n, levels, seed):
    """Labels and scores, of which many are equal."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 2, n), rng.integers(0, levels + 1, n) / levels


@settings(max_examples=100)
@given(
    n=st.integers(1, 80),
    levels=st.integers(1, 12),
    groups=st.integers(1, 9),
    seed=st.integers(0, 2**32 - 1),
)
def test_grouped_auc_is_the_mean_of_the_groups_aucs(n, levels, groups, seed):
    y, p = random_rows(n, levels, seed)
    group = np.random.default_rng(seed + 1).integers(0, groups, n)
    both = [g for g in set(group) if len(set(y[group == g])) == 2]
    rows = [int((group == g).sum()) for g in both]
    found = grouped_auc(y, p, group)
    assert (found.groups, found.all_groups, found.rows) == (len(both), len(set(group)), sum(rows))
    if not both:
        assert np.isnan(found.auc)
        return
    aucs = [sk.roc_auc_score(y[group == g], p[group == g]) for g in both]
    assert found.auc == pytest.approx(np.average(aucs, weights=rows), abs=1e-12)


@settings(max_examples=50)
@given(n=st.integers(2, 80), levels=st.integers(1, 12), seed=st.integers(0, 2**32 - 1))
def test_normalized_entropy_compares_with_the_click_rate(n, levels, seed):
    y, p = random_rows(n, levels, seed)
    if len(set(y)) < 2:
        assert np.isnan(normalized_entropy(y, p))
        return
    constant = log_loss(y, np.full(n, y.mean()))
    assert normalized_entropy(y, p) == pytest.approx(log_loss(y, p) / constant, rel=1e-12)
    assert log_loss_and_entropy(y, p) == (log_loss(y, p), normalized_entropy(y, p))
    assert calibration(y, p) == pytest.approx(p.sum() / y.sum(), rel=1e-12)


def test_calibration_needs_a_click():
    assert np.isnan(calibration([0, 0], [0.1, 0.2]))


@settings(max_examples=100)
@given(
    n=st.integers(1, 80),
    levels=st.integers(1, 12),
    bins=st.integers(1, 9),
    seed=st.integers(0, 2**32 - 1),
)
def test_reliability_bins_hold_all_rows_in_order(n, levels, bins, seed):
    y, p = random_rows(n, levels, seed)
    order = np.argsort(p, kind="stable")
    rows, first = list(zip(p[order], y[order])), 0
    found = reliability(y, p, bins=bins)
    assert len(found) <= bins
    for each in found:
        inside, first = rows[first : first + each.rows], first + each.rows
        assert each.predicted == pytest.approx(np.mean([score for score, _ in inside]))
        assert each.observed == pytest.approx(np.mean([label for _, label in inside]))
        assert first == n or rows[first - 1][0] < rows[first][0], "equal predictions were parted"
    assert first == n


def test_reliability_bins_of_distinct_predictions_have_equal_rows():
    p = np.random.default_rng(1).permutation(1000) / 1000
    assert [each.rows for each in reliability(p > 0.5, p, bins=4)] == [250] * 4


def weighted_rows(n, levels, seed):
    """Labels of both classes, scores with ties, and weights, of which some are 0."""
    rng = np.random.default_rng(seed)
    y = np.append([0, 1], rng.integers(0, 2, n - 2))
    w = rng.integers(0, 4, n) * rng.random(n)
    w[:2] = 1
    return y, rng.integers(0, levels + 1, n) / levels, w


@settings(max_examples=200)
@given(
    n=st.sampled_from([2, 3, 60, 300, 100_000]),
    levels=st.integers(1, 40),
    seed=st.integers(0, 2**32 - 1),
    weighted=st.booleans(),
)
def test_equal_to_scikit_learn_with_ties(n, levels, seed, weighted):
    y, p, w = weighted_rows(n, levels, seed)
    given = {"sample_weight": w if weighted else None}
    assert roc_auc(y, p, **given) == pytest.approx(sk.roc_auc_score(y, p, **given), abs=1e-12)
    assert log_loss(y, p, **given) == pytest.approx(sk.log_loss(y, p, **given), rel=1e-12)
    w = w if weighted else np.ones(n)
    expected = np.average(p, weights=w) / np.average(y, weights=w)
    assert calibration(y, p, **given) == pytest.approx(expected, rel=1e-12)
    assert sum(bin.rows for bin in reliability(y, p, **given)) == np.count_nonzero(w)


@settings(max_examples=100)
@given(n=st.integers(4, 60), levels=st.integers(1, 12), seed=st.integers(0, 2**32 - 1))
def test_whole_weights_are_repeated_rows(n, levels, seed):
    y, p, _ = weighted_rows(n, levels, seed)
    w = np.random.default_rng(seed).integers(0, 4, n)
    w[:2] = 1
    groups = np.arange(n) % 3
    rows = np.repeat(np.arange(n), w)
    for metric in (roc_auc, log_loss, normalized_entropy, calibration):
        expected = metric(y[rows], p[rows])
        assert metric(y, p, sample_weight=w) == pytest.approx(expected, rel=1e-12, nan_ok=True)
    found, expected = (
        grouped_auc(y, p, groups, sample_weight=w),
        grouped_auc(y[rows], p[rows], groups[rows]),
    )
    assert found.auc == pytest.approx(expected.auc, abs=1e-12, nan_ok=True)
    assert found.groups == expected.groups


def test_a_group_of_large_weights_leaves_others_exact():
    w = [1e30, 1e30, 1e-3, 1e-3, 1e-3]
    found = grouped_auc(
        [0, 1, 0, 1, 1], [0.1, 0.9, 0.2, 0.3, 0.1], [0, 0, 1, 1, 1], sample_weight=w
    )
    assert found.auc == 1 and found.groups == 2


def test_equal_weights_change_no_error_and_their_scale_does_not_matter():
    y, p, w = weighted_rows(300, 20, 5)
    ones = np.full(300, 7.5)
    expected = auc_standard_error(y, p)
    assert auc_standard_error(y, p, sample_weight=ones) == pytest.approx(expected, rel=1e-12)
    found = auc_standard_error(y, p, sample_weight=w)
    assert auc_standard_error(y, p, sample_weight=9 * w) == pytest.approx(found, rel=1e-12)
    assert auc_difference(y, p, p, sample_weight=w) == (0, 0)


def test_the_weighted_error_is_the_spread_of_other_rows():
    draws = [weighted_rows(400, 50, seed) for seed in range(300)]
    aucs = [roc_auc(y, p, sample_weight=w) for y, p, w in draws]
    errors = [auc_standard_error(y, p, sample_weight=w) for y, p, w in draws]
    assert np.mean(errors) == pytest.approx(np.std(aucs), rel=0.12)
