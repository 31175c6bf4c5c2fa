"""Parts of different lengths: their numbers, ranges and sums, on a CPU and as on a GPU."""

from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cowclip_merlin import compat

PARTS = st.lists(st.tuples(st.integers(0, 4), st.integers(-5, 1 << 40)), max_size=8)


@pytest.fixture(scope="module", params=["CPU", "GPU"])
def device(tf, request):
    """The operations for a GPU, computed on this CPU."""
    found = [SimpleNamespace(name="GPU:0")] if request.param == "GPU" else []
    with mock.patch.object(tf.config, "list_logical_devices", return_value=found):
        yield request.param


@given(PARTS)
def test_parts_are_those_of_slow_loops(tf, device, parts):
    lengths = tf.constant([size for size, _ in parts], tf.int32)
    starts = tf.constant([start for _, start in parts], tf.int64)
    numbers = compat.part_numbers(lengths)
    assert numbers.numpy().tolist() == [i for i, (size, _) in enumerate(parts) for _ in range(size)]
    found = compat.ranges_of_parts(starts, lengths).numpy().tolist()
    assert found == [start + i for size, start in parts for i in range(size)]
    values = np.random.default_rng(1).random((len(found), 3)).astype(np.float32)
    sums = compat.sums_of_parts(tf.constant(values, shape=[len(found), 3]), numbers, len(parts))
    expected = np.zeros((len(parts), 3))
    for row, part in zip(values, numbers.numpy(), strict=True):
        expected[part] += row
    np.testing.assert_allclose(sums, expected, rtol=1e-6)


def test_the_gradient_of_a_sum_reaches_each_row(tf, device):
    values = tf.ones([3, 2])
    with tf.GradientTape() as tape:
        tape.watch(values)
        sums = compat.sums_of_parts(values, tf.constant([0, 0, 2]), 4)
        loss = tf.reduce_sum(sums * tf.constant([[1.0], [5.0], [2.0], [7.0]]))
    np.testing.assert_array_equal(tape.gradient(loss, values), [[1, 1], [1, 1], [2, 2]])
