"""The memory of TensorFlow's variables as NumPy arrays, without a copy.

A variable that is looked up with `tf.gather` is from then on copied whenever it is read whole;
`memory_tensor` returns its memory instead.
"""

from __future__ import annotations

import ctypes

import numpy as np

from cowclip_merlin import compat
from cowclip_merlin.types import Array, Tensor, Variable

tf = compat.tensorflow()


def separate_memory(variable: Variable) -> Tensor:
    """Give the variable memory that no other variable shares; return a value that must be used.

    Variables share memory after `a.assign(b)`, or where one tensor was the initial value of both,
    and so the replicas of a strategy begin. A sparse read gives the variable its own memory, but
    TensorFlow drops the read from a graph if no operation uses the value, [1, ...].
    """
    handle, dtype = variable.handle, variable.dtype.base_dtype
    return tf.raw_ops.ResourceGather(resource=handle, indices=[0], dtype=dtype)


def memory_tensor(variable: Variable) -> Tensor:
    """Return a tensor that is the variable's memory; call `separate_memory` first."""
    handle, dtype = variable.handle, variable.dtype.base_dtype
    tf.raw_ops.DisableCopyOnRead(resource=handle)
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)


def writable_view(x: Array) -> Array:
    """Return the same memory, writable: eager tensors offer it for reading only.

    It is a view by address. A tensor that stays alive would make the next sparse write copy all of
    the variable.
    """
    if x.nbytes == 0:
        return x.copy()
    memory = (ctypes.c_char * x.nbytes).from_address(x.ctypes.data)
    return np.frombuffer(memory, x.dtype).reshape(x.shape)
