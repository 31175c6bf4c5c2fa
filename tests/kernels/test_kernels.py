"""Every fast implementation of the row kernels against the slow, obvious one."""

from dataclasses import replace

import numpy as np
import pytest
from kernel_checks import Kernels, Subject, check_bad_gradient, make_case, state

from cowclip_merlin import kernels
from cowclip_merlin.errors import InputError
from cowclip_merlin.kernels import RowSettings

ref, fast = kernels.load("reference"), kernels.load("numba")


class TestNumba(Kernels):
    parts, absent = (1, 1, 2, 5, 32), True

    @pytest.fixture
    def subject(self):
        return Subject(fast)

    def half(self, values):
        return values.astype(pytest.importorskip("ml_dtypes").bfloat16)


def test_the_reference_writes_nothing_of_a_bad_gradient():
    check_bad_gradient(Subject(ref), make_case(6, 90, 4, 40), np.nan, RowSettings())


@pytest.mark.parametrize("parts", [1, 3, 8])
def test_squares_of_the_micro_batches(parts):
    rng = np.random.default_rng(parts)
    ids, values = rng.integers(0, 9, 61), rng.normal(size=(61, 3)).astype(np.float32)
    expected = ref.unique_rows(ids, values, parts).squares
    np.testing.assert_allclose(fast.unique_rows(ids, values, parts).squares, expected, rtol=1e-4)


def test_groups_keep_the_order_of_the_batch_and_the_type_of_the_ids():
    for dtype in (np.int32, np.int64):
        ids = np.random.default_rng(0).integers(0, 3000, 20000).astype(dtype)
        got, expected = fast.group_rows(ids), ref.group_rows(ids)
        assert got.ids.dtype == dtype
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_array_equal(a, b)


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
