"""The clips of Table 6 against NumPy, by what a step of SGD does to two tables."""

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import cowclip_merlin as cc
from cowclip_merlin import choices
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
        assert optimizer.mean_clip_factor.numpy() == pytest.approx(present.mean(), abs=1e-5)
