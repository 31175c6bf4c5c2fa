"""The memory of TensorFlow's variables as NumPy arrays, without a copy.

A variable that is looked up with `tf.gather` is from then on copied whenever it is read whole;
`memory_tensor` returns its memory instead.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError

tf = compat.tensorflow()


def separate_memory(variable: Any) -> Any:
    """Give the variable memory that no other variable shares; return a value that must be used.

    Variables share memory after `a.assign(b)`, or where one tensor was the initial value of both,
    and so the replicas of a strategy begin. A sparse read gives the variable its own memory, but
    TensorFlow drops the read from a graph if no operation uses the value, [1, ...].
    """
    handle, dtype = variable.handle, variable.dtype.base_dtype
    return tf.raw_ops.ResourceGather(resource=handle, indices=[0], dtype=dtype)


def memory_tensor(variable: Any) -> Any:
    """Return a tensor that is the variable's memory; call `separate_memory` first."""
    handle, dtype = variable.handle, variable.dtype.base_dtype
    tf.raw_ops.DisableCopyOnRead(resource=handle)
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)


def _written(variables: Sequence[Any], done: Sequence[Any]) -> None:
    """Let whatever reads these variables from here on wait for `done`."""
    with tf.control_dependencies(done):
        for variable in variables:
            # Does nothing, but a tf.function takes it for a write of the variable.
            tf.raw_ops.DisableCopyOnRead(resource=variable.handle)


def refuse_elsewhere(table: Any, backend: str) -> None:
    """Refuse a table in memory that the kernels of this backend do not see.

    Raises:
        InputError: if the device differs; numba would update a copy of a table on a GPU.
    """
    wanted = {"numba": "CPU", "cupy": "GPU"}[backend]
    found = tf.DeviceSpec.from_string(table.device).device_type
    if found not in (None, wanted):
        raise InputError(
            f"table {table.name!r} is in the memory of {table.device}, but "
            f'backend="{backend}" updates rows on the {wanted}: create the table under '
            f'tf.device("{wanted}"), or use another backend'
        )


def on_host(
    function: Callable[..., Any], inputs: Sequence[Any], variables: Sequence[Any], types: Any
) -> list[Any]:
    """Call a function of NumPy arrays that writes into the memory of variables.

    Args:
        function: takes the inputs and the variables' memory, returns a list of arrays.
        inputs: tensors.
        variables: what it may write; of rank 1 or more.
        types: of the results.

    Returns:
        The results; whatever reads the variables from here on comes after the call.
    """
    used = [separate_memory(variable) for variable in variables]
    memory = [memory_tensor(variable) for variable in variables]

    def call(*arrays: Any) -> Any:
        return function(*arrays[: len(arrays) - len(used)])

    if tf.executing_eagerly():
        views = [_writable(np.asarray(memoryview(x))) for x in memory]
        results = [tf.constant(x) for x in function(*(x.numpy() for x in inputs), *views)]
    else:
        results = tf.numpy_function(call, [*inputs, *memory, *used], types)
    _written(variables, results)
    return results


def _writable(x: Any) -> Any:
    """The same memory, writable: eager tensors give it out for reading only."""
    if x.nbytes == 0:
        return x.copy()
    memory = (ctypes.c_char * x.nbytes).from_address(x.ctypes.data)
    return np.frombuffer(memory, x.dtype).reshape(x.shape)
