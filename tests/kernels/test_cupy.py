"""The row kernels on a real GPU against the reference."""

import numpy as np
import pytest
from kernel_checks import Kernels, Subject, check_same_bits, check_unique, make_case

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


@pytest.fixture(scope="module")
def subject():
    import cupy

    return Subject(load("cupy"), put=cupy.asarray, get=cupy.asnumpy)


class TestGpu(Kernels):
    most = 400


def test_frequent_ids_and_the_same_bits_every_time(subject):
    case = make_case(2, 100_000, 16, 300)
    gaps = np.random.default_rng(0).integers(0, 100, len(case.w))
    for vocabulary in (1, 5, 5000):
        check_unique(subject, make_case(3, 70_000, 10, vocabulary))
    for _ in range(5):
        check_same_bits(subject, subject, case, RowSettings(l2=1e-4), gaps)


@pytest.mark.parametrize("d", [1, 3, 10, 16, 33])
def test_replay_and_adam_have_the_bits_of_numba(subject, d):
    # Ids once each, no clip: what is left has one order of operations only.
    case = make_case(4, 500, d, 500)
    rng = np.random.default_rng(1)
    ids = rng.permutation(len(case.w))
    alone = type(case)(ids, case.values[: len(ids)], case.w, case.m, case.v)
    gaps = rng.integers(0, 1000, len(case.w))
    settings = RowSettings(clip="none", l2=1e-4)
    check_same_bits(subject, Subject(load("numba")), alone, settings, gaps)
