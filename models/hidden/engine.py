"""Load what hidden layers need on a GPU: the operations, their kernels, and cuBLASLt."""

from __future__ import annotations

import ctypes
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from cowclip_merlin import compat
from cowclip_merlin.kernels.cuda.mlp import MLP_SOURCE
from cowclip_merlin.kernels.cuda.nvrtc import packaged_files
from cowclip_merlin.kernels.cuda.source import COMMON_SOURCE
from cowclip_merlin.models.hidden import check
from cowclip_merlin.models.hidden.fused import Engine
from cowclip_merlin.optimizer.row_updates import gpu_ops
from cowclip_merlin.types import DType, Variable

tf = compat.tensorflow()
_log = logging.getLogger("cowclip_merlin")

FUNCTIONS = ("copy_matrices", "add_bias_relu", "row_products", "relu_gradient", "join_bias")
"""The kernels, in the order of `MlpFunction` in row_ops/mlp/engine.h."""

PROGRAM = COMMON_SOURCE + MLP_SOURCE


class EngineRecord(ctypes.Structure):
    """`CowClipMlp` of row_ops/mlp/engine.h."""

    _fields_ = [
        ("host", ctypes.c_int32),
        ("blocks", ctypes.c_int32),
        ("library", ctypes.c_char_p),
        ("functions", ctypes.c_void_p * len(FUNCTIONS)),
    ]


def gpu_of(variable: Variable) -> int | None:
    """Return TensorFlow's index of the GPU that a variable is on; None on another device."""
    device = tf.DeviceSpec.from_string(variable.device)
    return device.device_index or 0 if device.device_type == "GPU" else None


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
            difference = thread.submit(check.difference, engine, dtype).result()
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
        module = cupy.RawModule(code=PROGRAM, options=gpu_ops.program_options(1, False))
        functions = [module.get_function(name).kernel for name in FUNCTIONS]
        blocks = gpu.attributes["MultiProcessorCount"] * gpu_ops.BLOCKS_PER_PROCESSOR
        addresses = tuple(each.ptr for each in functions)
        return gpu_ops.Loaded(addresses, blocks, module=(module, *functions))
