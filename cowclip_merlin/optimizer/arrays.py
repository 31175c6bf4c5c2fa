"""The memory of TensorFlow's variables as arrays of NumPy or CuPy, without a copy.

A variable that is looked up with `tf.gather` is from then on copied whenever it is read whole;
`shared` asks for its own memory instead.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cowclip_merlin import compat

tf = compat.tensorflow()


def shared(variable: Any) -> Any:
    """A tensor that is the variable's own memory, not shared with any other tensor."""
    handle, dtype = variable.handle, variable.dtype.base_dtype
    if variable.shape.rank:
        # A sparse read first: it gives the variable memory of its own if, say, the tensor of
        # its initial value still holds the same.
        tf.raw_ops.ResourceGather(resource=handle, indices=[0], dtype=dtype)
    tf.raw_ops.DisableCopyOnRead(resource=handle)
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)


def _written(variables: Sequence[Any], done: Sequence[Any]) -> None:
    """Let whatever reads these variables from here on wait for `done`."""
    with tf.control_dependencies(done):
        for variable in variables:
            # Does nothing, but a tf.function takes it for a write of the variable.
            tf.raw_ops.DisableCopyOnRead(resource=variable.handle)


def on_host(
    function: Callable[..., Any], inputs: Sequence[Any], variables: Sequence[Any], types: Any
) -> list[Any]:
    """Call a function of NumPy arrays that writes into the memory of variables.

    Args:
        function: takes the inputs and the variables' memory, returns a list of arrays.
        inputs: tensors.
        variables: what it may write.
        types: of the results.

    Returns:
        The results; whatever reads the variables from here on comes after the call.
    """
    memory = [shared(variable) for variable in variables]
    if tf.executing_eagerly():
        views = [_writable(np.asarray(memoryview(x))) for x in memory]
        results = [tf.constant(x) for x in function(*(x.numpy() for x in inputs), *views)]
    else:
        results = tf.numpy_function(function, [*inputs, *memory], types)
    _written(variables, results)
    return results


def _writable(x: Any) -> Any:
    """The same memory, writable: eager tensors give it out for reading only."""
    if x.nbytes == 0:
        return x.copy()
    memory = (ctypes.c_char * x.nbytes).from_address(x.ctypes.data)
    return np.frombuffer(memory, x.dtype).reshape(x.shape)


def on_device(
    function: Callable[..., Any], inputs: Sequence[Any], variables: Sequence[Any], types: Any
) -> list[Any]:
    """As `on_host`, but for a function of CuPy arrays, on a GPU.

    TensorFlow gives out no stream that CuPy could wait for, so each waits for the other by way
    of the host.
    """
    import cupy

    def call(*tensors: Any) -> Any:
        tf.test.experimental.sync_devices()
        results = function(*(cupy.from_dlpack(_Exported(x)) for x in tensors))
        cupy.cuda.get_current_stream().synchronize()
        return [tf.experimental.dlpack.from_dlpack(x.__dlpack__()) for x in results]

    memory = [shared(variable) for variable in variables]
    results = tf.py_function(call, [*inputs, *memory], types)
    _written(variables, results)
    return results


class _Exported:
    """A tensor with the methods that `from_dlpack` asks for."""

    def __init__(self, tensor: Any) -> None:
        self._capsule = tf.experimental.dlpack.to_dlpack(tensor)
        self._gpu = "GPU" in tensor.device

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2 if self._gpu else 1, 0)
