"""The CUDA source and its host code, run on the CPU; see emulation.h and emulated_cupy.py."""

from dataclasses import replace

import numpy as np
import pytest
from emulated_cupy import COMPILER, another_order, call, compile_source, load_kernels
from hypothesis import given
from hypothesis import strategies as st
from kernel_checks import (
    CLIPS,
    EVERY,
    ROW_CLIPS,
    Kernels,
    Subject,
    bfloat16_bits,
    check_adagrad,
    check_clip,
    check_replay,
    check_same_bits,
    check_unique,
    check_update,
    make_case,
)

from cowclip_merlin.errors import InputError
from cowclip_merlin.kernels import RowSettings, load
from cowclip_merlin.kernels.cuda.source import SEGMENT, TILES, tile_of

pytestmark = [pytest.mark.system, pytest.mark.skipif(COMPILER is None, reason="no g++ on PATH")]
LENGTHS = (1, 3, 10, 16, 33, 128)  # each is compiled once per tile: not every d


@pytest.fixture(scope="module")
def folder(make_once):
    return make_once("emulated", lambda folder: None)  # filled by what needs a kernel


@pytest.fixture(scope="module")
def subject(folder):
    return Subject(load_kernels(folder))


@pytest.fixture(scope="module")
def one_lane(folder):
    """A row is one lane's: sums are in the order in which numba adds."""
    return Subject(load_kernels(folder, tile=1))


class TestEmulated(Kernels):
    lengths = st.sampled_from(LENGTHS)


def test_tiles_hold_a_row():
    assert [tile_of(d) for d in (1, 2, 5, 16, 17, 128)] == [1, 2, 8, 16, 32, 32]


@pytest.mark.one_case
@pytest.mark.parametrize("tile", TILES)
def test_every_tile_with_a_row_that_does_not_fit(folder, tile):
    subject = Subject(load_kernels(folder, tile=tile))
    case = make_case(5, 45, 33, 20)
    for clip in CLIPS:
        check_clip(subject, case, RowSettings(clip=clip, l2=1e-3, bound=2.0))
    for clip in ROW_CLIPS:
        check_update(subject, case, RowSettings(clip=clip, l2=1e-3, bound=2.0))
    for rowwise in (True, False):
        check_adagrad(subject, case, RowSettings(l2=1e-3), rowwise)
    check_update(subject, case, RowSettings(), values=bfloat16_bits(case.values))
    check_unique(subject, case, values=bfloat16_bits(case.values))


@EVERY
@given(st.data())
def test_one_lane_has_the_bits_of_numba(one_lane, data):
    """Below 32 missed steps; a replay that ends early decays the moments in one product each."""
    case = make_case(data.draw(st.integers(0, 2**32 - 1)), 60, 10, data.draw(st.integers(1, 60)))
    gaps = np.random.default_rng(len(case.w)).integers(0, 32, len(case.w))
    rows = data.draw(TestEmulated().replays())
    check_same_bits(one_lane, Subject(load("numba")), case, rows, gaps)


@pytest.mark.parametrize("clip", ["cowclip", "column"])
def test_rows_at_the_threshold_have_the_bits_of_numba(one_lane, clip):
    """Squares are compared, not norms: where these round to the other side, the factor is 1."""
    case = make_case(8, 4000, 10, 10**6)
    u = len(case.w)
    unit = case.w / np.linalg.norm(case.w, axis=1, keepdims=True).clip(1e-9)
    w = case.w if clip == "cowclip" else (3 * unit).astype(np.float32)
    near = np.roll(w, 1, axis=1) * (1 + np.arange(u)[:, None] % 7 * np.float32(2**-24))
    case = replace(case, ids=np.arange(u), values=near.astype(np.float32)[:u], w=w)
    rows = RowSettings(clip=clip, r=1.0, bound=3.0, zeta=1e-30)
    check_same_bits(one_lane, Subject(load("numba")), case, rows, np.zeros(u, int))


def test_state_that_cannot_be_written_in_place_is_refused(subject):
    case = make_case(9, 20, 10, 5)
    groups = subject.kernels.group_rows(case.ids)
    wide = case.w.astype(np.float64)
    with pytest.raises(InputError, match=r"w must be .*float32"):
        subject.kernels.update_rows(wide, case.m, case.v, groups, case.values, 1, RowSettings())
    state = (case.w, case.m, np.asfortranarray(case.v))
    with pytest.raises(InputError, match=r"v must be .*float32"):
        subject.kernels.replay_rows(*state, np.zeros(len(case.w), int), [1.0], 1, RowSettings())


def test_a_replay_with_clipped_absent_rows_is_refused(subject):
    """The optimizer does not choose these kernels for it."""
    case = make_case(1, 9, 4, 5)
    state = [subject.put(x) for x in (case.w, case.m, case.v)]
    with pytest.raises(InputError, match=r"absent rows, .*'column'"):
        subject.kernels.replay_rows(
            *state, np.zeros(len(case.w), int), [1.0], 1, RowSettings(l2=1e-3, clip="column")
        )


@pytest.mark.parametrize("d", LENGTHS)
def test_all_kernels_in_another_order(subject, d):
    case = make_case(d, 3 * SEGMENT, d, 40)
    with another_order(seed=d):
        check_unique(subject, case)
        check_clip(subject, case, RowSettings(l2=1e-3))
        check_update(subject, case, RowSettings(l2=1e-3))
        check_adagrad(subject, case, RowSettings(l2=1e-3), rowwise=True)
        gaps = np.random.default_rng(d).integers(0, 50, len(case.w))
        check_replay(subject, case, gaps, 60, RowSettings(l2=1e-4))


RACE = """
extern "C" __global__ void race(int* out) {
    __shared__ int last;
    last = threadIdx.x;
    out[threadIdx.x] = last;
    if (threadIdx.x == 255) out[256] = blockIdx.x;
}
"""


def test_another_order_shows_a_race(folder):
    """The last thread and the last block that write are others."""
    launch, ends = compile_source(RACE, [], folder).launch_race, []
    for seed in (0, 1):
        out = np.zeros(257, np.int32)
        with another_order(seed):
            call(launch, "I", (1000,), (256,), [out])
        ends.append(out[256])
    assert ends[0] == 999 and ends[1] != 999
