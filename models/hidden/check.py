"""Compare hidden layers of an engine with NumPy, so that a wrong result is never trained on."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from cowclip_merlin import compat
from cowclip_merlin.models.hidden.fused import Engine, hidden_layers
from cowclip_merlin.types import DType, Floats

tf = compat.tensorflow()
ROWS, WIDTHS = 256, (37, 48, 32)


def difference(engine: Engine, dtype: DType) -> str:
    """Compute a small MLP forward and backward; name what is wrong, or return "".

    Its numbers are -1, 0 and 1, and its biases keep activations before the ReLU away from 0. So
    all sums are exact, and only stored results are rounded.

    Args:
        engine: what computes.
        dtype: type of the products.
    """
    values, of_result = _numbers()
    count, inputs = len(WIDTHS) - 1, [tf.constant(each, tf.float32) for each in values]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        x, kernels, biases = inputs[0], inputs[1 : 1 + count], inputs[1 + count :]
        result = hidden_layers(x, kernels, biases, engine=engine, dtype=dtype)
    gradients = tape.gradient(result, inputs, tf.constant(of_result, dtype))
    found = [tf.cast(each, tf.float64).numpy() for each in (result, *gradients)]
    exact = reference(values[0], values[1 : 1 + count], values[1 + count :], of_result)
    names = ["result", "dx", *(f"{x} {i + 1}" for x in ("kernel", "bias") for i in range(count))]
    bound = 2.0**-7 if dtype == tf.bfloat16 else 2.0**-10  # a rounding of bfloat16 or TF32, doubled
    for name, ours, right in zip(names, found, exact):
        if not np.all(np.abs(ours - right) <= bound * np.abs(right)):
            return f"{name} by {np.max(np.abs(ours - right)):.3g}"
    return ""


def _numbers() -> tuple[list[Floats], Floats]:
    rng = np.random.default_rng(0)
    shapes = [(ROWS, WIDTHS[0]), *itertools.pairwise(WIDTHS), (ROWS, WIDTHS[-1])]
    *values, of_result = [rng.integers(-1, 2, shape).astype(np.float64) for shape in shapes]
    # The sums before the biases are multiples of 1, then of 1/2.
    biases = [rng.choice([-1, 1], n) * 2.0 ** -(i + 1) for i, n in enumerate(WIDTHS[1:])]
    return [*values, *biases], of_result


def reference(
    x: Floats, kernels: Sequence[Floats], biases: Sequence[Floats], g: Floats
) -> list[Floats]:
    """Return the result and the gradients of x, kernels and biases in float64.

    Args:
        x: input [b, k].
        kernels: [k, n] of each layer.
        biases: [n] of each layer.
        g: gradient of the result.

    >>> reference(np.ones([1, 1]), [np.full([1, 1], 2.0)], [np.ones(1)], np.ones([1, 1]))
    [array([[3.]]), array([[2.]]), array([[1.]]), array([1.])]
    """
    h = [x]
    for kernel, bias in zip(kernels, biases):
        h.append(np.maximum(h[-1] @ kernel + bias, 0))
    of_kernels, of_biases = [], []
    for i in reversed(range(len(kernels))):
        g = np.where(h[i + 1] > 0, g, 0)
        of_kernels.insert(0, h[i].T @ g)
        of_biases.insert(0, g.sum(0))
        g = g @ kernels[i].T
    return [h[-1], g, *of_kernels, *of_biases]
