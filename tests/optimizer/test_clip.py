"""The clips of Table 6 against NumPy: their factors, and what a step of SGD does to two tables."""

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import cowclip_merlin as cc
from cowclip_merlin import choices, clip
from cowclip_merlin.choices import RowSettings

GRADIENT_CLIPS = sorted(n for n, c in choices.CLIPS.items() if c.acts_on == "gradient")


def numpy_factors(name, gradients, tables, cnt, field, settings, keep):
    """One factor per row that is kept, row by row and field by field from the definitions."""
    rows = [(g, w) for pair in zip(gradients, tables) for g, w in zip(*pair)]
    rows = [row for row, kept in zip(rows, keep) if kept]
    cnt, field, out = cnt[keep], field[keep], np.ones(len(rows))

    def norm(part, which):
        return np.sqrt(sum((rows[i][part].astype(np.float64) ** 2).sum() for i in which))

    for k, (_, w) in enumerate(rows):
        same, every = np.flatnonzero(field == field[k]), range(len(rows))
        if name == "cowclip":
            floor = np.sqrt(len(w)) * settings.zeta
            size, limit = norm(0, [k]), max(cnt[k], 1) * max(settings.r * norm(1, [k]), floor)
        elif name == "column":
            size, limit = norm(0, [k]), settings.bound
        elif name == "field":
            size, limit = norm(0, same), settings.bound
        elif name == "adaptive_field":
            size, limit = norm(0, same), max(cnt[same].sum(), 1) * settings.r * norm(1, same)
        elif name == "global":
            size, limit = norm(0, every), settings.bound
        else:
            continue
        out[k] = 1.0 if size == 0 else min(1.0, limit / size)
    return out


@pytest.mark.parametrize("name", GRADIENT_CLIPS)
@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@example(sizes=[3, 2], dim=4, r=1.0, zeta=1e-3, bound=1.0, scale=100.0, seed=0)  # all are clipped
@example(sizes=[3, 2], dim=4, r=1e-3, zeta=1.0, bound=1.0, scale=100.0, seed=0)  # by the floor
@example(sizes=[3, 2], dim=4, r=1e6, zeta=0.0, bound=1e6, scale=1.0, seed=0)  # none is
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    dim=st.integers(1, 16),
    r=st.floats(0, 10),
    zeta=st.floats(0, 1),
    bound=st.floats(0, 30),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 100.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_factors_and_bounds(tf, name, sizes, dim, scale, seed, **numbers):
    """Of TensorFlow's tensors and NumPy's arrays."""
    rng = np.random.default_rng(seed)
    n, field = sum(sizes), np.repeat(np.arange(len(sizes)), sizes)
    g, w = rng.normal(0, scale, (n, dim)), rng.normal(0, 1, (n, dim))
    g[rng.random(n) < 0.2], w[rng.random(n) < 0.2] = 0, 0
    cnt, chosen = rng.integers(0, 5, n), RowSettings(clip=name, **numbers)
    given = {"g": g, "w": w, "cnt": cnt, "field": field.astype(np.int32)}
    expected = numpy_factors(name, [g], [w], cnt, field, chosen, np.full(n, True))
    for kind, convert in ((tf.Tensor, tf.constant), (np.ndarray, np.asarray)):
        arrays = {key: convert(x) for key, x in given.items()}
        rows = clip.ClipRows(**arrays, num_fields=len(sizes))
        (factors,) = clip.gradient_factors([rows], chosen)
        assert isinstance(factors, kind) and factors.dtype == arrays["g"].dtype
        np.testing.assert_allclose(factors, expected, rtol=1e-9, atol=1e-30)
        assert ((np.asarray(factors) >= 0) & (np.asarray(factors) <= 1)).all()


@pytest.mark.parametrize("name", GRADIENT_CLIPS)
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@example(update="dense", r=0.3, zeta=1e-5, bound=2.0, scale=9.0, l2=0.2, seed=5)  # absent rows, too
@example(update="lazy", r=1e-3, zeta=1.0, bound=1.0, scale=100.0, l2=0.0, seed=0)  # by the floor
@given(
    update=st.sampled_from(["dense", "lazy"]),
    r=st.floats(0, 10),
    zeta=st.floats(0, 1),
    bound=st.floats(0, 30),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 100.0]),
    l2=st.sampled_from([0.0, 0.2]),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_step_of_sgd_is_the_clipped_gradient(tf, name, update, l2, scale, seed, **numbers):
    """Of two tables, of which one has two fields; the global norm is over both."""
    rng = np.random.default_rng(seed)
    shapes, fields = ((7, 3), (4, 2)), {"^first": {"a": 3, "b": 4}, "^second": {"c": 4}}
    field, chosen = np.repeat([0, 1, 2], [3, 4, 4]), RowSettings(**numbers)
    start = [rng.normal(0, 1, shape).astype(np.float32) for shape in shapes]
    for w in start:
        w[rng.random(len(w)) < 0.2] = 0
    ids = [rng.integers(0, n - 1, rng.integers(0, 7)) for n, _ in shapes]
    values = [rng.normal(0, scale, (len(i), d)).astype("f") for i, (_, d) in zip(ids, shapes)]
    tables = [tf.Variable(w, name=x) for w, x in zip(start, ("first", "second"))]
    sgd = tf.keras.optimizers.legacy.SGD(1.0)
    optimizer = cc.CowClip(sgd, l2=l2, clip=name, update=update, fields=fields, **numbers)
    slices = [tf.IndexedSlices(*map(tf.constant, pair), s) for *pair, s in zip(values, ids, shapes)]
    optimizer.apply_gradients(list(zip(slices, tables)))
    cnt = np.concatenate([np.bincount(i, minlength=n) for i, (n, _) in zip(ids, shapes)])
    gradients = []
    for w, i, v in zip(start, ids, values):
        gradients.append(2 * l2 * w.astype(np.float64))
        np.add.at(gradients[-1], i, v.astype(np.float64))
    keep = np.full(11, update == "dense") | (cnt > 0)
    factors = np.ones(11)
    factors[keep] = numpy_factors(name, gradients, start, cnt, field, chosen, keep)
    for w, g, table, part in zip(start, gradients, tables, (slice(7), slice(7, 11))):
        wanted = w - np.where(keep[part, None], g * factors[part, None], 0)
        np.testing.assert_allclose(table.numpy(), wanted, rtol=1e-5, atol=2e-6 * max(1, scale))
    present = factors[cnt > 0]
    if len(present):
        margin = np.abs(present - 1) < 1e-5  # float32 may see one as clipped, or not
        share = float(optimizer.clipped_share.numpy()) * len(present)
        assert ((present < 1) & ~margin).sum() - 1e-3 <= share
        assert share <= ((present < 1) | margin).sum() + 1e-3
        assert optimizer.mean_clip_factor.numpy() == pytest.approx(present.mean(), abs=1e-5)
