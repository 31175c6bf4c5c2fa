"""Metrics computed where the logits are, against those of NumPy on the host."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cowclip_merlin import compat, metrics
from cowclip_merlin.errors import InputError
from cowclip_merlin.metrics.on_device import metrics_on_device
from cowclip_merlin.training.evaluation import evaluate
from cowclip_merlin.training.scoring.predicting import sigmoid

BINS = 5


@pytest.fixture(scope="module")
def compute():
    return metrics_on_device(bins=BINS)


def on_device(compute, labels, logits, weights=None):
    tf = compat.tensorflow()
    given = [None if x is None else tf.constant(x, tf.float32) for x in (labels, logits, weights)]
    return compute(*given)


def check(compute, labels, logits, weights=None):
    found, p = on_device(compute, labels, logits, weights), sigmoid(logits.astype(np.float64))
    expected = evaluate(labels, p, weights=weights)
    for name in ("auc", "auc_error", "log_loss", "normalized_entropy", "calibration"):
        want = getattr(expected, name)
        assert getattr(found, name) == pytest.approx(want, rel=1e-12, abs=1e-13, nan_ok=True), name
    if weights is None:
        assert found.auc == expected.auc or np.isnan(expected.auc)  # all counts are exact
    bins = metrics.reliability(labels, p, bins=BINS, sample_weight=weights)
    assert [each.rows for each in found.bins] == [each.rows for each in bins]
    assert np.array(found.bins) == pytest.approx(np.array(bins), rel=1e-9, abs=1e-12)
    assert found.nan_rows == 0


def drawn(n, levels, seed, weighted):
    """Labels, logits of both signs with ties, and perhaps weights, of which some are 0."""
    rng = np.random.default_rng(seed)
    labels = (rng.random(n) < rng.choice([0.0, 0.3, 1.0], p=[0.1, 0.8, 0.1])).astype(np.float32)
    logits = (rng.integers(-levels, levels + 1, n) / 3).astype(np.float32)
    weights = (rng.integers(0, 3, n) * rng.random(n)).astype(np.float32) if weighted else None
    return labels, logits, weights


@settings(max_examples=40)
@given(n=st.integers(1, 90), levels=st.integers(0, 60), seed=st.integers(0, 2**32 - 1))
def test_equal_to_the_metrics_of_numpy(compute, n, levels, seed):
    check(compute, *drawn(n, levels, seed, weighted=False))


@settings(max_examples=40)
@given(n=st.integers(1, 90), levels=st.integers(0, 60), seed=st.integers(0, 2**32 - 1))
def test_equal_to_the_weighted_metrics_of_numpy(compute, n, levels, seed):
    labels, logits, weights = drawn(n, levels, seed, weighted=True)
    weights[0] = 1
    check(compute, labels, logits, weights)


def test_extreme_logits_are_ordered_and_tie_as_probabilities_do(compute):
    """Both zeros are one probability, and so are all above 37."""
    logits = np.float32([-0.0, 0.0, 1e-40, -1e-40, 40, 60, -90, -3e38, 3e38, -40])
    for labels in (np.arange(10) % 2, np.arange(10) < 5):
        check(compute, labels.astype(np.float32), logits)


def test_a_nan_is_counted(compute):
    assert on_device(compute, [0, 1, 1], [0.0, np.nan, 1.0]).nan_rows == 1


def test_without_rows_or_weights_there_is_nothing_to_score(compute):
    with pytest.raises(InputError, match="no rows"):
        on_device(compute, [], [])
    with pytest.raises(InputError, match="all weights are 0"):
        on_device(compute, [0, 1], [0.0, 1.0], [0, 0])


def test_a_hundred_thousand_rows(compute):
    rng = np.random.default_rng(2)
    logits = rng.normal(-1, 2, 100_000).astype(np.float32)
    check(compute, (rng.random(100_000) < sigmoid(logits)).astype(np.float32), logits)


def test_a_rate_that_rounds_to_one_has_no_entropy(compute):
    """As on the host, where the entropy of one class is 0."""
    labels, logits, weights = [1.0, 0.0], [0.5, -0.5], [1e20, 1.0]
    found = on_device(compute, labels, logits, weights)
    assert np.isnan(found.normalized_entropy) and found.log_loss == pytest.approx(0.474, abs=1e-3)
