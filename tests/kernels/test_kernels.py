"""Every fast implementation of the row kernels against the slow, obvious one."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_checks import (
    CLIPS,
    EVERY,
    Subject,
    cases,
    check_adagrad,
    dims,
    parts,
    seeds,
    settings_of_rows,
    state,
    wide,
)

from cowclip_merlin import choices, kernels
from cowclip_merlin.errors import InputError
from cowclip_merlin.kernels import NonFiniteGradient, RowSettings

ref, fast = kernels.load("reference"), kernels.load("numba")


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
    values = RowSettings(l2=1e-3, clip=clip, r=0.7, zeta=1e-3, bound=0.5)
    expected = ref.clip_rows(g, w, cnt, values, field=field, num_fields=3)
    got = fast.clip_rows(g, w, cnt, values, field=field, num_fields=3)
    np.testing.assert_allclose(got[1], expected[1], rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-4, atol=1e-7)


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
    numbers = RowSettings(l2=1e-3, clip=clip, bound=0.5, r=0.5, micro_batches=micro_batches)
    factor = fast.update_rows(*rows, groups, values, 1e-3, numbers)
    expected = ref.update_rows(*slow, ref.group_rows(np.array(ids, int)), values, 1e-3, numbers)
    np.testing.assert_allclose(factor, expected, rtol=1e-4)
    for a, b in zip(rows, slow, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5 * max(1, scale))


@EVERY
@given(cases(), settings_of_rows(choices.kernel_clips()), st.booleans())
def test_adagrad_rows(case, numbers, rowwise):
    check_adagrad(Subject(fast), case, numbers, rowwise)


@pytest.mark.parametrize("columns", [1, 3])
def test_adagrad_does_not_divide_zero_by_zero(columns):
    for kernels_ in (ref, fast):
        w, sums = np.ones((2, 3), np.float32), np.zeros((2, columns), np.float32)
        batch = np.array([1]), np.zeros((1, 3), np.float32), np.array([0, 1])
        kernels_.adagrad_rows(w, sums, *batch, 0.1, RowSettings(epsilon=0.0))
        assert (w == 1).all() and (sums == 0).all()


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
    numbers = RowSettings(clip=clip, bound=1.5e-2 * d**0.5, l2=1e-3)
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
