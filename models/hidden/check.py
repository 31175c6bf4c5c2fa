"""Compare hidden layers of an engine with NumPy, so that a wrong result is never trained on."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from cowclip_merlin import compat
from cowclip_merlin.models.hidden.fused import Engine, hidden_layers
from cowclip_merlin.types import DType, Floats

tf = compat.tensorflow()
SMALL = 256, (37, 48, 32)
LARGE = 8192, (273, 400, 400)
"""Rows and widths like a training's: cuBLASLt chooses its code by them."""


def difference(engine: Engine, dtype: DType) -> str:
    """Compute an MLP forward and backward; name what is wrong, or return "".

    Its numbers are -1, 0 and 1, and its biases keep activations before the ReLU away from 0. So
    all sums are exact, and only stored results are rounded. It is `LARGE` on a GPU.

    Args:
        engine: what computes.
        dtype: type of the products.
    """
    rows, widths = SMALL if engine.device.startswith("CPU") else LARGE
    x, kernels, biases, of_result = _numbers(rows, widths)
    output = np.resize([1.0, 2.0, 1.0], [widths[-1], 1])
    of_output = np.resize([2.0, 1.0], [rows, 1])
    return _difference(engine, dtype, x, kernels, biases, of_result) or _difference(
        engine, dtype, x, kernels, biases, of_output, output
    )


def _difference(
    engine: Engine,
    dtype: DType,
    x: Floats,
    kernels: list[Floats],
    biases: list[Floats],
    of_result: Floats,
    output: Floats | None = None,
) -> str:
    exact = reference(x, kernels, biases, of_result, output)
    count, more = len(kernels), [] if output is None else [output]
    padded = np.pad(x, [(0, 0), (0, -x.shape[1] % 8)])  # as `read_batch` pads it
    inputs = [tf.constant(each, tf.float32) for each in (padded, *kernels, *biases, *more)]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        layers = inputs[0], inputs[1 : 1 + count], inputs[1 + count : 1 + 2 * count]
        last = inputs[-1] if more else None
        result = hidden_layers(*layers, engine=engine, dtype=dtype, output=last)
    gradients = tape.gradient(result, inputs, tf.constant(of_result, result.dtype))
    found = [tf.cast(each, tf.float64).numpy() for each in (result, *gradients)]
    found[1] = found[1][:, : x.shape[1]]
    names = [f"{x} {i + 1}" for x in ("kernel", "bias") for i in range(count)]
    bound = 2.0**-7 if dtype == tf.bfloat16 else 2.0**-10  # a rounding of bfloat16 or TF32, doubled
    for name, ours, right in zip(["result", "dx", *names, "output"], found, exact):
        if not np.all(np.abs(ours - right) <= bound * np.abs(right)):
            return f"{name} by {np.max(np.abs(ours - right)):.3g}"
    return ""


def _numbers(b: int, widths: Sequence[int]) -> tuple[Floats, list[Floats], list[Floats], Floats]:
    rng = np.random.default_rng(0)
    shapes = [(b, widths[0]), *itertools.pairwise(widths), (b, widths[-1])]
    x, *kernels, of_result = [rng.integers(-1, 2, shape).astype(np.float64) for shape in shapes]
    # The sums before the biases are multiples of 1, then of 1/2.
    biases = [rng.choice([-1, 1], n) * 2.0 ** -(i + 1) for i, n in enumerate(widths[1:])]
    return x, kernels, biases, of_result


def reference(
    x: Floats,
    kernels: Sequence[Floats],
    biases: Sequence[Floats],
    g: Floats,
    output: Floats | None = None,
) -> list[Floats]:
    """Return the result and the gradients of x, kernels, biases and output in float64.

    Args:
        x: input [b, k].
        kernels: [k, n] of each layer.
        biases: [n] of each layer.
        g: gradient of the result.
        output: kernel [n, m] of a layer without bias and ReLU that follows; None without one.

    >>> reference(np.ones([1, 1]), [np.full([1, 1], 2.0)], [np.ones(1)], np.ones([1, 1]))
    [array([[3.]]), array([[2.]]), array([[1.]]), array([1.])]
    """
    h = [x]
    for kernel, bias in zip(kernels, biases):
        h.append(np.maximum(h[-1] @ kernel + bias, 0))
    of_kernels, of_biases, of_output, result = [], [], [], h[-1]
    if output is not None:
        result, of_output, g = h[-1] @ output, [h[-1].T @ g], g @ output.T
    for i in reversed(range(len(kernels))):
        g = np.where(h[i + 1] > 0, g, 0)
        of_kernels.insert(0, h[i].T @ g)
        of_biases.insert(0, g.sum(0))
        g = g @ kernels[i].T
    return [result, g, *of_kernels, *of_biases, *of_output]
