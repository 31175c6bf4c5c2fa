"""Every fast implementation of the row kernels against the slow, obvious one."""

import warnings
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_checks import (
    CLIPS,
    Case,
    Subject,
    check_replay_of,
    settings_of_replays,
)

from cowclip_merlin import choices, kernels
from cowclip_merlin.choices import ClipSettings
from cowclip_merlin.errors import InputError
from cowclip_merlin.kernels import NonFiniteGradient, RowSettings

ref, fast = kernels.load("reference"), kernels.load("numba")
EVERY = settings(max_examples=40)
dims = st.sampled_from([1, 2, 3, 5, 7, 10, 16, 31, 64, 100, 128])
seeds = st.integers(0, 2**32 - 1)
parts = st.sampled_from([1, 1, 2, 5, 32])  # micro-batches


def state(rng, u, d, scale=1e-2):
    w, m = rng.normal(0, scale, (u, d)), rng.normal(0, scale / 10, (u, d))
    return [x.astype(np.float32) for x in (w, m, rng.random((u, d)) * scale**2)]


def wide(arrays):
    return [x.astype(np.float64) for x in arrays]


@EVERY
@given(
    st.lists(
        st.one_of(st.integers(0, 9), st.integers(2**31 - 2, 2**31 + 2), st.integers(0, 2**40)),
        max_size=60,
    ),
    dims,
    seeds,
)
def test_unique_rows(ids, d, seed):
    ids = np.array(ids, np.int64)
    values = np.random.default_rng(seed).normal(size=(len(ids), d)).astype(np.float32)
    expected, got = ref.unique_rows(ids, values, 3), fast.unique_rows(ids, values, 3)
    np.testing.assert_allclose(got.squares, expected.squares, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(got.ids, expected.ids)
    np.testing.assert_array_equal(got.cnt, expected.cnt)
    np.testing.assert_allclose(got.g, expected.g, rtol=1e-4, atol=1e-5)


def test_groups_keep_the_order_of_the_batch_and_the_type_of_the_ids():
    for dtype in (np.int32, np.int64):
        ids = np.random.default_rng(0).integers(0, 3000, 20000).astype(dtype)
        got, expected = fast.group_rows(ids), ref.group_rows(ids)
        assert got.ids.dtype == dtype
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_batch_of_one_id():
    values = np.ones((65536, 3), np.float32)
    rows = fast.unique_rows(np.zeros(65536, np.int64), values)
    assert rows.cnt.tolist() == [65536] and rows.g.tolist() == [[65536.0] * 3]


def test_equal_bits_from_run_to_run():
    rng = np.random.default_rng(1)
    ids, values = rng.integers(0, 50, 5000), rng.normal(size=(5000, 10)).astype(np.float32)
    first = fast.unique_rows(ids, values).g
    for _ in range(5):
        np.testing.assert_array_equal(fast.unique_rows(ids, values).g, first)


@EVERY
@given(st.integers(0, 12), dims, st.sampled_from(CLIPS), st.sampled_from([1e-3, 1.0, 30.0]), seeds)
def test_clip_rows(u, d, clip, scale, seed):
    rng = np.random.default_rng(seed)
    w, g = state(rng, u, d)[0], rng.normal(0, scale, (u, d)).astype(np.float32)
    g[rng.random(u) < 0.2] = 0
    cnt, field = rng.integers(0, 65536, u), rng.integers(0, 3, u)
    values = RowSettings(
        l2=1e-3, clip=clip, clip_settings=ClipSettings(r=0.7, zeta=1e-3, bound=0.5)
    )
    expected = ref.clip_rows(g, w, cnt, values, field=field, num_fields=3)
    got = fast.clip_rows(g, w, cnt, values, field=field, num_fields=3)
    np.testing.assert_allclose(got[1], expected[1], rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-4, atol=1e-7)


@EVERY
@given(st.integers(0, 40), dims, st.integers(0, 60), seeds, settings_of_replays(), parts)
def test_replay_rows(u, d, steps, seed, values, micro_batches):
    rng, values = np.random.default_rng(seed), replace(values, micro_batches=micro_batches)
    rows = state(rng, u, d)
    slow = wide(rows)
    last = rng.integers(0, steps + 1, u).astype(np.int32)
    slow_last = last.copy()
    alphas = rng.uniform(0, 1e-3, steps + 5).astype(np.float32)
    fast.replay_rows(*rows, last, alphas, steps, values)
    ref.replay_rows(*slow, slow_last, alphas, steps, values)
    for a, b, atol in zip(rows, slow, (2e-6, 2e-7, 2e-9), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=atol)
    np.testing.assert_array_equal(last, slow_last)


@EVERY
@given(st.integers(0, 300), st.integers(0, 40), st.booleans(), seeds)
def test_replay_of_some_rows_with_duplicates(u, steps, whole, seed):
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, u, rng.integers(0, 500) if u else 0)
    case = Case(None, None, *state(rng, u, 3))
    last = rng.integers(0, steps + 3, u).astype(np.int32 if whole else np.float32)
    check_replay_of(Subject(fast), case, rows, last, steps, RowSettings(l2=1e-3))


def trained_rows(rng, u, d):
    """Rows as training leaves them, and with moments of any size, and some that are all 0."""
    scale = 10.0 ** rng.uniform(-6, -1, (u, d))
    v = (scale * rng.uniform(0.03, 3, (u, d))) ** 2
    rows = [rng.normal(0, 1e-2, (u, d)), scale * rng.normal(size=(u, d)), v]
    for x in rows:
        x[::7] = 0
    return [x.astype(np.float32) for x in rows]


def replay_every_step(rows, alphas, values):
    """The same kernel, without an early end."""
    expected = [x.copy() for x in rows]
    with patch.object(fast, "_largest_rate", lambda *_: -1.0):
        fast.replay_rows(*expected, np.zeros(len(rows[0]), np.int32), alphas, len(alphas), values)
    return expected


@settings(max_examples=20)
@given(
    st.integers(1, 60), dims, st.integers(100, 4000), seeds,
    st.sampled_from([(0.9, 0.999), (0.7, 0.872), (0.0, 0.5), (0.9, 0.811), (0.99, 0.9999)]),
    st.sampled_from(["none", "cowclip", "column"]),
)  # fmt: skip
def test_without_l2_a_replay_that_ends_early_has_all_bits_of_the_weights(
    u, d, steps, seed, betas, clip
):
    rng = np.random.default_rng(seed)
    rows, values = trained_rows(rng, u, d), replays_with(betas, clip, l2=0.0)
    warm_up = np.minimum(1, np.arange(1, steps + 1) / rng.integers(1, steps))
    alphas = (1e-3 * warm_up * rng.uniform(0.5, 1, steps)).astype(np.float32)
    alphas[rng.random(steps) < 0.1] = -1  # refused steps
    expected = replay_every_step(rows, alphas, values)
    last = np.zeros(u, np.int32)
    fast.replay_rows(*rows, last, alphas, steps, values)
    np.testing.assert_array_equal(rows[0], expected[0])
    np.testing.assert_allclose(rows[1], expected[1], rtol=1e-3, atol=1e-30)
    np.testing.assert_allclose(rows[2], expected[2], rtol=1e-3, atol=1e-30)


def replays_with(betas, clip, l2):
    where = ClipSettings(r=1e-6, zeta=0.0, bound=1e-8)  # both clips cut L2's gradient
    return RowSettings(l2=l2, clip=clip, clip_settings=where, beta_1=betas[0], beta_2=betas[1])


@EVERY
@given(
    st.integers(1, 30), dims, st.integers(100, 6000), seeds,
    st.sampled_from([1e-6, 1e-5, 1e-4]), st.sampled_from(["none", "cowclip", "column"]),
)  # fmt: skip
def test_with_l2_a_replay_ends_where_weights_are_0(u, d, steps, seed, l2, clip):
    rng = np.random.default_rng(seed)
    rows, values = trained_rows(rng, u, d), replays_with((0.9, 0.999), clip, l2)
    alphas = rng.uniform(0.5e-4, 1e-4, steps).astype(np.float32)
    expected = replay_every_step(rows, alphas, values)
    fast.replay_rows(*rows, np.zeros(u, np.int32), alphas, steps, values)
    largest = 1e-4  # one step of Adam
    np.testing.assert_allclose(rows[0], expected[0], rtol=0, atol=1e-7 * largest)
    np.testing.assert_allclose(rows[1], expected[1], rtol=0, atol=1e-7 * 1e-4)
    np.testing.assert_allclose(rows[2], expected[2], rtol=1e-3, atol=1e-14)


@pytest.mark.parametrize(("u", "d"), [(5, 1), (1, 5)])
def test_a_number_at_rest_does_not_wait_for_those_before_it(u, d):
    """Of a chunk or of a row: those that start near 0 are 0 long before the others."""
    start = np.array([1.0, 1e-6, 0.5, 1e-6, 1e-3], np.float32).reshape(u, d)
    rows = [start, np.zeros_like(start), np.zeros_like(start)]
    alphas, values = np.full(1500, 1e-4, np.float32), RowSettings(l2=1e-4)
    expected = replay_every_step(rows, alphas, values)
    fast.replay_rows(*rows, np.zeros(u, np.int32), alphas, len(alphas), values)
    np.testing.assert_array_equal(rows[0].ravel()[[1, 3]], 0)
    assert (expected[0] != 0).all() and (rows[0].ravel()[[0, 2]] > 0.1).all()
    np.testing.assert_allclose(rows[0], expected[0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(rows[2], expected[2], rtol=1e-3, atol=1e-30)


def test_a_square_too_small_for_a_normal_number_is_0():
    """It would take a CPU a hundred cycles, in every step of a weight that is almost 0."""
    w = np.full((4, 8), 1e-17, np.float32)  # its gradient is 2e-21, and the moment would be 4e-45
    rows = [w, np.zeros_like(w), np.zeros_like(w)]
    fast.replay_rows(*rows, np.zeros(4, np.int32), np.full(9, 1e-9, "f"), 9, RowSettings(l2=1e-4))
    assert (rows[2] == 0).all() and (rows[1] != 0).all()


def test_a_replay_ends_early_only_where_that_is_right():
    rng, rates = np.random.default_rng(5), np.full(20_000, 1e-4, np.float32)
    for values, ends in (
        (RowSettings(l2=1e-5), True),
        (RowSettings(l2=1e-3), False),  # weights near 0 swing
        (RowSettings(beta_1=0.9, beta_2=0.81), False),  # |m| / sqrt(v) does not fall
        (RowSettings(), True),
    ):
        rows = trained_rows(rng, 50, 4)
        rows[2] *= 1e-6
        expected = replay_every_step(rows, rates, values)
        fast.replay_rows(*rows, np.zeros(50, np.int32), rates, len(rates), values)
        same = all((a == b).all() for a, b in zip(rows, expected, strict=True))
        assert same != ends


def test_replaying_in_pieces_gives_the_same_weights():
    rng = np.random.default_rng(2)
    rows, alphas = state(rng, 300, 10), rng.uniform(0, 1e-3, 500).astype(np.float32)
    last = rng.integers(0, 100, 300).astype(np.int32)
    for values in (RowSettings(), RowSettings(l2=1e-4)):
        once, pieces, steps = [x.copy() for x in rows], [x.copy() for x in rows], last.copy()
        fast.replay_rows(*once, last.copy(), alphas, 500, values)
        for to in (50, 101, 102, 350, 500):
            fast.replay_rows(*pieces, steps, alphas, to, values)
        np.testing.assert_array_equal(once[0], pieces[0])
        for a, b in zip(once[1:], pieces[1:], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-30)


@pytest.mark.thorough
def test_a_gap_of_a_hundred_thousand_steps():
    rng = np.random.default_rng(3)
    rows = state(rng, 2, 3)
    slow, alphas = wide(rows), np.full(100_000, 1e-4, np.float32)
    fast.replay_rows(*rows, np.zeros(2, np.int32), alphas, 100_000, RowSettings(l2=1e-3))
    ref.replay_rows(*slow, np.zeros(2, np.int32), alphas, 100_000, RowSettings(l2=1e-3))
    # Near zero the weights swing by about one learning rate; both must have arrived there.
    assert np.abs(rows[0]).max() < 2e-4 and np.abs(slow[0]).max() < 2e-4


@EVERY
@given(
    st.lists(st.integers(0, 12), max_size=40),
    dims,
    st.sampled_from(choices.kernel_clips()),
    st.sampled_from([1e-3, 1.0, 30.0]),
    seeds,
    parts,
)
def test_update_rows(ids, d, clip, scale, seed, micro_batches):
    rng = np.random.default_rng(seed)
    values = rng.normal(0, scale, (len(ids), d)).astype(np.float32)
    values[rng.random(len(ids)) < 0.3] = 0
    groups = fast.group_rows(np.array(ids, np.int64))
    rows = state(rng, len(groups.ids), d)
    slow = wide(rows)
    thresholds = ClipSettings(bound=0.5, r=0.5)
    numbers = RowSettings(l2=1e-3, clip=clip, clip_settings=thresholds, micro_batches=micro_batches)
    factor = fast.update_rows(*rows, groups, values, 1e-3, numbers)
    expected = ref.update_rows(*slow, ref.group_rows(np.array(ids, int)), values, 1e-3, numbers)
    np.testing.assert_allclose(factor, expected, rtol=1e-4)
    for a, b in zip(rows, slow, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5 * max(1, scale))


@pytest.mark.parametrize("copies", [1, 2, 7])
def test_equal_micro_batches_make_the_moments_of_one(copies):
    """A mean gradient of s equal micro-batches: v takes 1 / s of the square, L2 included."""
    rng = np.random.default_rng(8)
    ids, values = rng.integers(0, 9, 40), rng.normal(size=(40, 3)).astype(np.float32)
    rows = state(rng, len(np.unique(ids)), 3)
    one, many = [x.copy() for x in rows], [x.copy() for x in rows]
    numbers = RowSettings(l2=0.1, clip="none", beta_2=0.0)
    fast.update_rows(*one, fast.group_rows(ids), values, 1e-3, numbers)
    numbers = replace(numbers, micro_batches=copies)
    groups, means = fast.group_rows(np.tile(ids, copies)), np.tile(values, (copies, 1)) / copies
    fast.update_rows(*many, groups, means, 1e-3, numbers)
    np.testing.assert_allclose(many[1], one[1], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(copies * many[2], one[2], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("d", [1, 10, 600])
@pytest.mark.parametrize("clip", ["cowclip", "column"])
def test_many_rows_are_clipped_as_by_the_kernel_that_clips_alone(d, clip):
    """`update_rows` takes rows chunk by chunk and side by side: the norms must not notice."""
    rng = np.random.default_rng(d)
    ids = rng.integers(0, 900, 2000)
    values, groups = rng.normal(0, 1e-2, (2000, d)).astype("f"), fast.group_rows(ids)
    w, m, v = state(rng, len(groups.ids), d)
    numbers = RowSettings(clip=clip, clip_settings=ClipSettings(bound=1.5e-2 * d**0.5), l2=1e-3)
    g, cnt = fast.sum_rows(values, groups), np.diff(groups.starts)
    _, expected = fast.clip_rows(g, w, cnt, numbers)
    factor = fast.update_rows(w, m, v, groups, values, 1e-3, numbers)
    np.testing.assert_array_equal(factor, expected)
    assert 0 < (factor < 1).mean() < 1


def test_however_many_threads_share_the_work_the_bits_are_the_same(monkeypatch):
    rng = np.random.default_rng(6)
    ids = np.concatenate([np.full(900, 3), rng.integers(0, 700, 600)])  # one id has most
    values, rows = rng.normal(size=(1500, 10)).astype(np.float32), state(rng, 700, 10)
    last, alphas = rng.integers(0, 200, 700).astype(np.int32), np.full(200, 1e-3, np.float32)
    results = []
    for threads in (1, 2, 3, 2000):
        monkeypatch.setattr(fast, "get_num_threads", lambda threads=threads: threads)
        mine = [x.copy() for x in (*rows, last)]
        fast.replay_rows(*mine, alphas, 200, RowSettings(l2=1e-3))
        squares = fast.square_rows(values, fast.group_rows(ids), 8)
        results.append([fast.unique_rows(ids, values).g, *mine, squares])
    assert not np.array_equal(results[0][1], rows[0])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_gradients_in_bfloat16():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    rng = np.random.default_rng(4)
    values = rng.normal(size=(30, 5)).astype(ml_dtypes.bfloat16)
    ids = rng.integers(0, 6, 30)
    np.testing.assert_array_equal(
        fast.unique_rows(ids, values).g, fast.unique_rows(ids, values.astype(np.float32)).g
    )


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("module", [ref, fast], ids=["reference", "numba"])
def test_a_gradient_that_is_not_finite_writes_nothing(module, poison):
    rng = np.random.default_rng(5)
    values = rng.normal(size=(9, 4)).astype(np.float32)
    values[7, 2] = poison
    ids = np.array([5, 1, 1, 8, 5, 3, 3, 8, 1])
    rows = state(rng, 4, 4)
    before = [x.copy() for x in rows]
    with pytest.raises(NonFiniteGradient) as error, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module.update_rows(*rows, module.group_rows(ids), values, 1e-3, RowSettings())
    assert error.value.index == 3  # id 8
    for a, b in zip(rows, before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_unknown_kernels_are_named():
    with pytest.raises(InputError, match=r"unknown kernels 'cuda'; .* reference, numba"):
        kernels.load("cuda")


@pytest.mark.quick
@pytest.mark.system
def test_kernels_import_no_tensorflow():
    import subprocess
    import sys

    code = (
        "import sys; from cowclip_merlin import kernels; kernels.load('numba'); "
        "assert not {'tensorflow', 'merlin', 'keras'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
