"""The kernels that group ids, run on the CPU as row_ops/group.h launches them, against NumPy."""

import ctypes
import re

import numpy as np
import pytest
from emulated_cupy import COMPILER, another_order, compile_source, pointer
from hypothesis import given, settings
from hypothesis import strategies as st

from cowclip_merlin.kernels.cuda.source import FOLDER, options, program

pytestmark = [pytest.mark.system, pytest.mark.skipif(COMPILER is None, reason="no g++ on PATH")]
SHARED = (FOLDER / "shared.h").read_text()
BLOCK, ITEMS, DIGITS, DIGIT_BITS = (
    int(re.search(rf"\b{name} = (\d+)", SHARED)[1])
    for name in ("BLOCK", "ITEMS", "DIGITS", "DIGIT_BITS")
)
CHUNK = BLOCK * ITEMS
NONE = np.iinfo(np.int64).max
SIZES = (1, 2, 31, 32, 33, 511, 512, 513, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 77)
ROWS = (1, 2, 3, 512, 513, 1 << 18, (1 << 18) + 1, 1 << 27, (1 << 27) + 1, 1 << 31)


@pytest.fixture(scope="module")
def kernels(make_once):
    folder = make_once("emulated", lambda folder: None)  # filled by what needs a kernel
    return compile_source(program("group"), options(1, 1), folder)


def launch(kernels, name, blocks, *args):
    """Launch a kernel; a word is np.int32 or np.int64 as in its parameters."""
    boxes = [ctypes.c_void_p() if x is None else pointer(x) for x in args]
    addresses = (ctypes.c_void_p * len(boxes))(*(ctypes.addressof(box) for box in boxes))
    getattr(kernels, f"launch_{name}")(ctypes.c_uint(blocks), ctypes.c_uint(BLOCK), addresses)


def new(n, dtype=np.uint32):
    return np.full(n, 0xABABABAB, dtype)


def group(kernels, ids, rows):
    """What the host does; returns distinct ids, starts, order, slots and the status of a table."""
    n, bits = len(ids), max(1, (rows - 1).bit_length())
    passes, tiles = -(-bits // DIGIT_BITS), -(-len(ids) // CHUNK)
    width = np.int32(-(-bits // passes))
    bins, taken = np.zeros((passes, DIGITS), np.uint32), np.zeros(passes + 1, np.uint32)
    states = np.zeros((passes + 1, tiles, BLOCK), np.uint64)
    status = np.array([0, NONE, NONE, 0], np.int64)
    source = ids, np.int32(ids.dtype == np.int64), np.zeros(1, np.int64), np.int32(0)
    launch(
        kernels, "histogram", 3, *source, np.int64(n), np.int64(rows), np.int32(passes), width,
        bins, status, np.int32(0),
    )  # fmt: skip
    assert (bins.sum(1) == n).all()
    keys, order = None, None
    for p in range(passes):
        to = new(n), new(n)
        launch(
            kernels, "onesweep", tiles, *source, np.int64(rows), keys, order, np.int64(n),
            np.int32(p * width), width, bins[p], taken[p:], states[p], *to,
        )  # fmt: skip
        keys, order = to
    found, starts, slots, u = new(n), new(n + 1), new(n), new(1)
    launch(
        kernels, "heads", tiles, keys, order, np.int64(n), taken[passes:], states[passes], found,
        starts, slots, u,
    )  # fmt: skip
    assert (taken == tiles).all()
    return found[: u[0]], starts[: u[0] + 1], order, slots, status


def check(kernels, ids, rows):
    found, starts, order, slots, status = group(kernels, ids, rows)
    outside = ids[(ids < 0) | (ids >= rows)].astype(np.int64)
    assert status.tolist() == [len(outside) > 0, NONE, min(outside, default=NONE), 0]
    inside = np.where((ids < 0) | (ids >= rows), 0, ids)
    unique, first, inverse = np.unique(inside, return_index=True, return_inverse=True)
    wanted = np.argsort(inside, kind="stable")
    np.testing.assert_array_equal(order, wanted)
    np.testing.assert_array_equal(found, unique)
    np.testing.assert_array_equal(starts[:-1], np.searchsorted(inside[wanted], unique))
    np.testing.assert_array_equal(order[starts[:-1]], first)
    assert starts[-1] == len(ids)
    np.testing.assert_array_equal(slots, inverse)


def make_ids(seed, n, rows, kind, dtype):
    rng = np.random.default_rng(seed)
    ids = {
        "any": lambda: rng.integers(0, rows, n),
        "few": lambda: rng.choice(rng.integers(0, rows, 3), n),
        "equal": lambda: np.full(n, rows - 1),
        "skewed": lambda: (rows * rng.random(n) ** 20).astype(np.int64),
        "falling": lambda: (rows - 1 - np.arange(n)) % rows,
    }[kind]()
    return ids.astype(dtype)


@settings(max_examples=30)
@given(st.data())
def test_groups_are_those_of_numpy(kernels, data):
    n, rows = data.draw(st.sampled_from(SIZES)), data.draw(st.sampled_from(ROWS))
    kind = data.draw(st.sampled_from(["any", "few", "equal", "skewed", "falling"]))
    dtype = data.draw(st.sampled_from([np.int32, np.int64]))
    ids = make_ids(data.draw(st.integers(0, 2**32 - 1)), n, rows, kind, dtype)
    if data.draw(st.booleans()):
        ids[data.draw(st.integers(0, n - 1))] = -data.draw(st.integers(1, 9))
    if dtype is np.int64 and data.draw(st.booleans()):
        ids[data.draw(st.integers(0, n - 1))] = rows + data.draw(st.sampled_from([0, 1 << 40]))
    with another_order(data.draw(st.integers(0, 3))):
        check(kernels, ids, rows)


@pytest.mark.parametrize("kind", ["any", "skewed"])
def test_tiles_that_run_at_once_look_back_over_each_other(kernels, kind):
    """With one fixed order each tile would find the sum of the tile before it."""
    ids = make_ids(7, 12 * CHUNK + 5, 1 << 12, kind, np.int64)
    with another_order(seed=5):
        check(kernels, ids, 1 << 12)
