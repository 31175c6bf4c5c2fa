"""The CUDA source and its host code, run on the CPU; see emulation.h and emulated_cupy.py."""

from dataclasses import replace

import numpy as np
import pytest
from emulated_cupy import COMPILER, another_order, call, compile_source, load_kernels
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_checks import (
    CLIPS,
    ROW_CLIPS,
    Subject,
    bfloat16_bits,
    cases,
    check_adagrad,
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

from cowclip_merlin.errors import InputError
from cowclip_merlin.kernels import RowSettings, load
from cowclip_merlin.kernels.cuda.source import SEGMENT, TILES, tile_of

pytestmark = [pytest.mark.system, pytest.mark.skipif(COMPILER is None, reason="no g++ on PATH")]
LENGTHS = (1, 3, 10, 16, 33, 128)  # each is compiled once per tile: not every d
few = settings(max_examples=25)


@pytest.fixture(scope="module")
def folder(make_once):
    return make_once("emulated", lambda folder: None)  # filled by what needs a kernel


@pytest.fixture(scope="module")
def emulated(folder):
    return Subject(load_kernels(folder))


@pytest.fixture(scope="module")
def one_lane(folder):
    """A row is one lane's: sums are in the order in which numba adds."""
    return Subject(load_kernels(folder, tile=1))


def test_tiles_hold_a_row():
    assert [tile_of(d) for d in (1, 2, 5, 16, 17, 128)] == [1, 2, 8, 16, 32, 32]


@few
@given(case=cases())
def test_group(emulated, case):
    check_group(emulated, case.ids)


@few
@given(st.data())
def test_all_kernels(emulated, data):
    d, seed = data.draw(st.sampled_from(LENGTHS)), data.draw(st.integers(0, 2**32 - 1))
    n, vocabulary = data.draw(st.integers(0, 50)), data.draw(st.integers(1, 60))
    case = make_case(seed, n, d, vocabulary)
    check_unique(emulated, case)
    check_clip(emulated, case, data.draw(settings_of_rows(CLIPS)))
    check_update(emulated, case, data.draw(settings_of_rows(ROW_CLIPS)))
    check_adagrad(emulated, case, data.draw(settings_of_rows(ROW_CLIPS)), data.draw(st.booleans()))
    to = data.draw(st.integers(0, 60))
    gaps = np.random.default_rng(seed).integers(-3, to + 1, len(case.w))
    check_replay(emulated, case, np.minimum(gaps, to), to, data.draw(replays_on_gpu()))


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


@few
@given(st.data())
def test_one_lane_has_the_bits_of_numba(one_lane, data):
    """Below 32 missed steps; a replay that ends early decays the moments in one product each."""
    case = make_case(data.draw(st.integers(0, 2**32 - 1)), 60, 10, data.draw(st.integers(1, 60)))
    gaps = np.random.default_rng(len(case.w)).integers(0, 32, len(case.w))
    rows = data.draw(replays_on_gpu())
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


def test_the_same_bits_twice(emulated):
    case = make_case(2, 3 * SEGMENT, 10, 3)
    check_same_bits(emulated, emulated, case, RowSettings(), np.array([0, 7, 3]))


@pytest.mark.parametrize("n", [SEGMENT, SEGMENT + 1, 2 * SEGMENT, 5 * SEGMENT + 3])
def test_frequent_ids_are_summed_in_pieces(emulated, n):
    case = make_case(3, n, 10, 1)
    check_unique(emulated, case)
    mixed = make_case(4, 4 * n, 10, 5)
    ids = np.where(np.arange(4 * n) % 2, mixed.ids, 1000 + np.arange(4 * n))  # and rare ones
    check_unique(emulated, replace(mixed, ids=ids))
    check_update(emulated, mixed, RowSettings(l2=1e-4))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("vocabulary", [1, 40])
def test_a_bad_gradient_changes_nothing(emulated, bad, vocabulary):
    check_bad_gradient(emulated, make_case(6, 2 * SEGMENT, 10, vocabulary), bad, RowSettings())


def test_a_bad_gradient_of_a_frequent_id_among_rare_ones_is_placed(emulated):
    case = make_case(6, 2 * SEGMENT, 10, 1)
    ids = np.where(np.arange(2 * SEGMENT) < 10, np.arange(2 * SEGMENT), 500)
    state = make_case(6, 11, 10, 10**6)
    mixed = replace(case, ids=ids, w=state.w, m=state.m, v=state.v)
    check_bad_gradient(emulated, mixed, np.nan, RowSettings())


def test_zero_gradients_and_zero_rows(emulated):
    case = make_case(7, 20, 10, 5)
    case.values[:], case.w[:] = 0, 0
    for clip in CLIPS:
        check_clip(emulated, case, RowSettings(clip=clip, zeta=0.0))
    check_update(emulated, case, RowSettings(zeta=0.0))


@pytest.mark.parametrize("gap", [0, 1, 1000])
def test_replay_of_no_step_and_of_many(emulated, gap):
    case = make_case(8, 20, 10, 10)
    check_replay(emulated, case, np.full(len(case.w), gap), gap + 5, RowSettings(l2=1e-4))


def test_state_that_cannot_be_written_in_place_is_refused(emulated):
    case = make_case(9, 20, 10, 5)
    groups = emulated.kernels.group_rows(case.ids)
    wide = case.w.astype(np.float64)
    with pytest.raises(InputError, match=r"w must be .*float32"):
        emulated.kernels.update_rows(wide, case.m, case.v, groups, case.values, 1, RowSettings())
    state = (case.w, case.m, np.asfortranarray(case.v))
    with pytest.raises(InputError, match=r"v must be .*float32"):
        emulated.kernels.replay_rows(*state, np.zeros(len(case.w), int), [1.0], 1, RowSettings())


def test_a_replay_with_clipped_absent_rows_is_refused(emulated):
    """The optimizer does not choose these kernels for it."""
    case = make_case(1, 9, 4, 5)
    state = [emulated.put(x) for x in (case.w, case.m, case.v)]
    with pytest.raises(InputError, match=r"absent rows, .*'column'"):
        emulated.kernels.replay_rows(
            *state, np.zeros(len(case.w), int), [1.0], 1, RowSettings(l2=1e-3, clip="column")
        )


@pytest.mark.parametrize("d", LENGTHS)
def test_all_kernels_in_another_order(emulated, d):
    case = make_case(d, 3 * SEGMENT, d, 40)
    with another_order(seed=d):
        check_unique(emulated, case)
        check_clip(emulated, case, RowSettings(l2=1e-3))
        check_update(emulated, case, RowSettings(l2=1e-3))
        check_adagrad(emulated, case, RowSettings(l2=1e-3), rowwise=True)
        gaps = np.random.default_rng(d).integers(0, 50, len(case.w))
        check_replay(emulated, case, gaps, 60, RowSettings(l2=1e-4))


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
