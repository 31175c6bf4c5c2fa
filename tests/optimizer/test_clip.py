"""The clips of Table 6: against NumPy, and the properties that make them clips."""

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import cowclip_merlin as cc
from cowclip_merlin import choices, clip
from cowclip_merlin.choices import RowSettings

GRADIENT_CLIPS = sorted(n for n, c in choices.CLIPS.items() if c.acts_on == "gradient")


def numpy_factors(name, g, w, cnt, field, settings):
    """One factor per row, written row by row and field by field from the definitions."""
    norm = np.linalg.norm
    out = np.ones(len(g))
    for k in range(len(g)):
        same = field == field[k]
        if name == "cowclip":
            floor = np.sqrt(w.shape[1]) * settings.zeta
            size, limit = norm(g[k]), max(cnt[k], 1) * max(settings.r * norm(w[k]), floor)
        elif name == "column":
            size, limit = norm(g[k]), settings.bound
        elif name == "field":
            size, limit = norm(g[same]), settings.bound
        elif name == "adaptive_field":
            size = norm(g[same])
            limit = max(cnt[same].sum(), 1) * settings.r * norm(w[same])
        elif name == "global":
            size, limit = norm(g), settings.bound
        else:
            continue
        out[k] = 1.0 if size == 0 else min(1.0, limit / size)
    return out


@pytest.mark.parametrize("name", GRADIENT_CLIPS)
@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@example(sizes=[3, 2], dim=4, r=1.0, zeta=1e-3, bound=1.0, scale=100.0, seed=0)  # all are clipped
@example(sizes=[3, 2], dim=4, r=1e-3, zeta=1.0, bound=1.0, scale=100.0, seed=0)  # by the floor
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    dim=st.integers(1, 16),
    r=st.floats(0, 10),
    zeta=st.floats(0, 1),
    bound=st.floats(0, 30),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 100.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_factors_and_bounds(tf, name, sizes, dim, r, zeta, bound, scale, seed):
    rng = np.random.default_rng(seed)
    n = sum(sizes)
    field = np.repeat(np.arange(len(sizes)), sizes)
    g, w = rng.normal(0, scale, (n, dim)), rng.normal(0, 1, (n, dim))
    g[rng.random(n) < 0.2], w[rng.random(n) < 0.2] = 0, 0
    cnt = rng.integers(0, 5, n)
    chosen = RowSettings(clip=name, r=r, zeta=zeta, bound=bound)
    rows = clip.ClipRows(
        g=tf.constant(g),
        w=tf.constant(w),
        cnt=tf.constant(cnt),
        field=tf.constant(field, tf.int32),
        num_fields=len(sizes),
    )
    (factors,) = clip.gradient_factors([rows], chosen)
    factors = factors.numpy()
    np.testing.assert_allclose(
        factors, numpy_factors(name, g, w, cnt, field, chosen), rtol=1e-9, atol=1e-30
    )
    assert ((factors >= 0) & (factors <= 1)).all()


@pytest.mark.parametrize("name", sorted({*GRADIENT_CLIPS} - {"none"}))
def test_a_huge_bound_is_the_identity(tf, name):
    rows = clip.ClipRows(
        g=tf.ones([4, 2]),
        w=tf.ones([4, 2]),
        cnt=tf.ones([4], tf.int32),
        field=tf.constant([0, 0, 1, 1]),
        num_fields=2,
    )
    (factors,) = clip.gradient_factors([rows], RowSettings(clip=name, r=1e6, bound=1e6))
    assert factors.numpy().tolist() == [1, 1, 1, 1]


def test_global_norm_is_over_all_tables(tf):
    rows = [
        clip.ClipRows(
            g=tf.fill([n, 1], x),
            w=tf.ones([n, 1]),
            cnt=tf.ones([n], tf.int32),
            field=tf.zeros([n], tf.int32),
            num_fields=1,
        )
        for n, x in ((1, 3.0), (1, 4.0))
    ]
    factors = clip.global_factors(rows, RowSettings(bound=1.0))
    assert [f.numpy().tolist() for f in factors] == [[pytest.approx(0.2)]] * 2


@pytest.mark.parametrize("name", GRADIENT_CLIPS)
@pytest.mark.parametrize("update", ["dense", "lazy"])
def test_every_clip_in_the_optimizer(tf, name, update):
    """One step with SGD shows the clipped gradient itself, absent rows included."""
    rng = np.random.default_rng(5)
    fields, lr, l2 = {"a": 3, "b": 4}, 1.0, 0.2
    w = rng.normal(0, 1, (7, 3)).astype(np.float32)
    ids, values = np.array([0, 2, 2, 5]), rng.normal(0, 9, (4, 3)).astype(np.float32)
    table = tf.Variable(w)
    chosen = RowSettings(r=0.3, zeta=1e-5, bound=2.0)  # 2 * l2 > r: absent rows are cut too
    optimizer = cc.CowClip(
        tf.keras.optimizers.legacy.SGD(lr),
        l2=l2,
        clip=name,
        update=update,
        fields=fields,
        r=chosen.r,
        bound=chosen.bound,
    )
    optimizer.apply_gradients(
        [(tf.IndexedSlices(tf.constant(values), tf.constant(ids), w.shape), table)]
    )
    g, cnt = np.zeros((7, 3)), np.zeros(7, int)
    for i, v in zip(ids, values, strict=True):
        g[i] += v
        cnt[i] += 1
    g += 2 * l2 * w
    keep = np.arange(7) if update == "dense" else np.flatnonzero(cnt)
    field = np.repeat([0, 1], list(fields.values()))
    factors = numpy_factors(name, g[keep], w[keep], cnt[keep], field[keep], chosen)
    expected = w.astype(np.float64)
    expected[keep] -= lr * g[keep] * factors[:, None]
    np.testing.assert_allclose(table.numpy(), expected, atol=2e-6)
    present = factors[cnt[keep] > 0]
    assert optimizer.clipped_share.numpy() == pytest.approx((present < 1).mean())
