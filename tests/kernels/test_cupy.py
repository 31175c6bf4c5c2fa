"""The row kernels on a real GPU against the reference."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_checks import (
    CLIPS,
    ROW_CLIPS,
    Subject,
    bfloat16_bits,
    cases,
    check_bad_gradient,
    check_clip,
    check_group,
    check_replay,
    check_same_bits,
    check_unique,
    check_update,
    make_case,
    replays_on_gpu,
    settings_of_rows,
)

from cowclip_merlin.kernels import RowSettings, load


def why_not():
    try:
        import cupy
    except ImportError as error:
        return f"cupy is not here: {error}"
    try:
        return None if cupy.cuda.runtime.getDeviceCount() else "cupy finds no device"
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"cupy finds no device: {error}"


REASON = why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))
some = settings(max_examples=40)


@pytest.fixture(scope="module")
def gpu():
    import cupy

    return Subject(load("cupy"), put=cupy.asarray, get=cupy.asnumpy)


@some
@given(case=cases(max_n=400))
def test_group_and_unique(gpu, case):
    check_group(gpu, case.ids)
    check_unique(gpu, case)
    check_unique(gpu, case, values=bfloat16_bits(case.values))


@some
@given(case=cases(max_n=400), rows=settings_of_rows(CLIPS))
def test_clip(gpu, case, rows):
    check_clip(gpu, case, rows)


@some
@given(case=cases(max_n=400), rows=settings_of_rows(ROW_CLIPS))
def test_update(gpu, case, rows):
    check_update(gpu, case, rows)
    check_update(gpu, case, rows, values=bfloat16_bits(case.values))


@some
@given(case=cases(), to=st.integers(0, 300), rows=replays_on_gpu())
def test_replay(gpu, case, to, rows):
    gaps = np.random.default_rng(to).integers(0, to + 1, len(case.w))
    check_replay(gpu, case, gaps, to, rows)


def test_frequent_ids_and_the_same_bits_every_time(gpu):
    case = make_case(2, 100_000, 16, 300)
    gaps = np.random.default_rng(0).integers(0, 100, len(case.w))
    for vocabulary in (1, 5, 5000):
        check_unique(gpu, make_case(3, 70_000, 10, vocabulary))
    for _ in range(5):
        check_same_bits(gpu, gpu, case, RowSettings(l2=1e-4), gaps)


@pytest.mark.parametrize("d", [1, 3, 10, 16, 33])
def test_replay_and_adam_have_the_bits_of_numba(gpu, d):
    # Ids once each, no clip: what is left has one order of operations only.
    case = make_case(4, 500, d, 500)
    rng = np.random.default_rng(1)
    ids = rng.permutation(len(case.w))
    alone = type(case)(ids, case.values[: len(ids)], case.w, case.m, case.v)
    gaps = rng.integers(0, 1000, len(case.w))
    check_same_bits(gpu, Subject(load("numba")), alone, RowSettings(clip="none", l2=1e-4), gaps)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("vocabulary", [1, 40, 5000])
def test_a_bad_gradient_changes_nothing(gpu, bad, vocabulary):
    check_bad_gradient(gpu, make_case(6, 5000, 10, vocabulary), bad, RowSettings())
