"""Hidden layers `relu(x W + b)` as one operation forward and one backward, on a checked engine."""

from __future__ import annotations

import ctypes
import itertools
import logging
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from cowclip_merlin import compat
from cowclip_merlin.kernels.cuda.nvrtc import packaged_files
from cowclip_merlin.kernels.cuda.source import program
from cowclip_merlin.optimizer.row_updates import gpu_ops
from cowclip_merlin.types import DType, Floats, Tensor

tf = compat.tensorflow()


@dataclass(frozen=True)
class Engine:
    """What computes hidden layers on a device.

    Attributes:
        module: TensorFlow's module of the loaded operations.
        number: number of the engine in the operations.
        device: device on which it computes, such as "GPU:0".
    """

    module: Any
    number: int
    device: str


def hidden_layers(
    x: Tensor,
    kernels: Sequence[Tensor],
    biases: Sequence[Tensor],
    *,
    engine: Engine,
    dtype: DType,
    output: Tensor | None = None,
) -> Tensor:
    """Apply dense layers with ReLU, one after the other.

    As Keras with mixed precision, it rounds kernels, biases and activations to `dtype` and sums
    products in float32. A bias is added before the rounding.

    Args:
        x: input [b, k], float32 or bfloat16. It may have more columns than the first kernel has
            rows: they must be finite, and count for nothing.
        kernels: float32 [k, n] of each layer.
        biases: float32 [n] of each layer.
        engine: what computes.
        dtype: type of the products and activations, float32 or bfloat16. If TensorFlow allows TF32,
            products of float32 use it.
        output: kernel [n, 1], float32, of a layer of one output without bias that follows; None
            without one. It reads the activations of the last layer without a copy in float32.

    Returns:
        The last layer's activations [b, n] in `dtype`, or with `output` its products [b, 1] in
        float32. Their gradient reaches x, kernels, biases and `output`.
    """
    count = len(kernels)
    widths = [int(kernels[0].shape[0]), *(int(kernel.shape[1]) for kernel in kernels)]
    common = {
        "engine": engine.number,
        "tf32": tf.config.experimental.tensor_float_32_execution_enabled(),
    }

    @tf.custom_gradient
    def apply(x: Tensor, *weights: Tensor) -> tuple[Tensor, Callable[..., Any]]:
        made = engine.module.cow_clip_mlp(
            x=x,
            kernels=weights[:count],
            biases=weights[count : 2 * count],
            output=weights[2 * count :],
            T=dtype,
            M=count + 1,
            **common,
        )
        result = made.result if output is None else made.products[0]
        result.set_shape([x.shape[0], widths[-1] if output is None else 1])

        def gradient(of_result: Tensor) -> list[Tensor]:
            with tf.device(engine.device):  # a tape runs this outside of `apply`'s scope
                found = engine.module.cow_clip_mlp_gradient(
                    gradient=[of_result] if output is None else [],
                    output=weights[2 * count :],
                    of_output=[] if output is None else [of_result],
                    activations=made.activations,
                    masks=made.masks,
                    weights=made.weights,
                    columns=int(x.shape[1]),
                    widths=widths,
                    X=x.dtype,
                    **common,
                )
            gradients = [found.dx, *found.dkernels, *found.dbiases, *found.doutput]
            for each, like in zip(gradients, (x, *weights)):
                each.set_shape(like.shape)
            return gradients

        return result, gradient

    with tf.device(engine.device):
        return apply(x, *kernels, *biases, *([] if output is None else [output]))


SMALL = 256, (37, 48, 32)
LARGE = 8192, (273, 400, 400)
"""Rows and widths like a training's: cuBLASLt chooses its code by them."""


def difference_from_numpy(engine: Engine, dtype: DType) -> str:
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


_log = logging.getLogger("cowclip_merlin")

FUNCTIONS = ("copy_matrices", "add_bias_relu", "row_products", "relu_gradient", "join_bias")
"""The kernels, in the order of `MlpFunction` in row_ops/mlp/engine.h."""


class EngineRecord(ctypes.Structure):
    """`CowClipMlp` of row_ops/mlp/engine.h."""

    _fields_ = [
        ("host", ctypes.c_int32),
        ("blocks", ctypes.c_int32),
        ("library", ctypes.c_char_p),
        ("functions", ctypes.c_void_p * len(FUNCTIONS)),
    ]


@cache
def engine_for(device: int, dtype: DType) -> Engine | None:
    """Return an engine for hidden layers of this type on a GPU, after a check of its results.

    If something is missing or the check fails, log one line and return None. Further calls return
    the same.

    Args:
        device: TensorFlow's index of the logical GPU.
        dtype: type of the products, float32 or bfloat16.
    """
    try:
        engine = _engine(device)
        with ThreadPoolExecutor(1) as thread:  # outside of the graph that this one may be tracing
            difference = thread.submit(difference_from_numpy, engine, dtype).result()
    except Exception as error:  # CuPy's compiler has errors of its own
        words = re.sub(r"\{\{.*?\}\} |: use --jit-compile| \[Op:.*", "", str(error), flags=re.S)
        words = (words.strip().splitlines() or [type(error).__name__])[0]
        _log.warning("slower hidden layers on the GPU: %s", words)
        return None
    if difference:
        _log.warning("slower hidden layers on the GPU: cuBLASLt differs in %s", difference)
        return None
    _log.info("hidden layers in %s: one operation on cuBLASLt", dtype.name)
    return engine


@cache
def _engine(device: int) -> Engine:
    gpu_ops.require_cupy()
    operations, loaded = gpu_ops.operations(), load_kernels(device)
    record = EngineRecord(
        host=loaded.host,
        blocks=loaded.blocks,
        library=cublas_file().encode(),
        functions=(ctypes.c_void_p * len(FUNCTIONS))(*loaded.addresses),
    )
    number = operations.add_engine(record)
    return Engine(operations.module, number, "CPU:0" if loaded.host else f"GPU:{device}")


def cublas_file() -> str:
    """Return the file of cuBLASLt in NVIDIA's Python packages; an empty string without it.

    It is only used if TensorFlow has not loaded cuBLASLt and the system has none.
    """
    return next(iter(packaged_files("cublas", "libcublasLt.so.*")), "")


@cache
def load_kernels(device: int) -> gpu_ops.Loaded:
    """Compile and load the kernels on a GPU.

    Args:
        device: TensorFlow's index of the logical GPU.
    """
    import cupy

    with cupy.cuda.Device(gpu_ops.cuda_number(device)) as gpu:
        module = cupy.RawModule(code=program("mlp"), options=gpu_ops.program_options(1, False))
        functions = [module.get_function(name).kernel for name in FUNCTIONS]
        blocks = gpu.attributes["MultiProcessorCount"] * gpu_ops.BLOCKS_PER_PROCESSOR
        addresses = tuple(each.ptr for each in functions)
        return gpu_ops.Loaded(addresses, blocks, module=(module, *functions))
