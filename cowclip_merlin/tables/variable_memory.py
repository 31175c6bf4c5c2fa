"""The memory of TensorFlow's variables as NumPy arrays, and functions that write into it.

A variable that is looked up with `tf.gather` is from then on copied whenever it is read whole;
`memory_tensor` returns its memory instead.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import sys
import weakref
from collections.abc import Callable, Sequence

import numpy as np

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.types import Array, DType, Tensor, Variable

tf = compat.any_tensorflow()


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


def call_in_graph(
    function: Callable[..., object], inputs: Sequence[Tensor], types: DType | Sequence[DType]
) -> Tensor | list[Tensor]:
    """Call a function of NumPy arrays, as `tf.numpy_function` does.

    TensorFlow keeps such a function in the outermost graph, for the life of the process. So the
    tables that the function refers to would never be freed, although their model is gone. Here
    the graphs of the `tf.function` keep the function, and TensorFlow keeps a weak reference.

    Args:
        function: takes and returns arrays.
        inputs: tensors.
        types: data types of the results.

    Returns:
        The results as tensors.
    """
    if tf.executing_eagerly():
        return tf.numpy_function(function, inputs, types)
    graphs = [tf.compat.v1.get_default_graph()]
    while hasattr(outer := getattr(graphs[-1], "outer_graph", None), "outer_graph"):
        graphs.append(outer)
    for graph in graphs:
        graph._cowclip_functions = [*getattr(graph, "_cowclip_functions", ()), function]
    held = weakref.ref(function)
    return tf.numpy_function(lambda *arrays: held()(*arrays), inputs, types)


def refuse_elsewhere(table: Variable, backend: str) -> None:
    """Refuse a table on a device that the kernels of this backend cannot access.

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
    function: Callable[..., list[Array]],
    inputs: Sequence[Tensor],
    variables: Sequence[Variable],
    types: Sequence[DType],
    *,
    also: Sequence[Variable] = (),
) -> list[Tensor]:
    """Call a function of NumPy arrays that writes into the memory of variables.

    Args:
        function: takes the inputs and the variables' memory, returns a list of arrays.
        inputs: tensors.
        variables: variables that the function may write, of rank 1 or more.
        types: data types of the results.
        also: variables that the function writes without being given their memory.

    Returns:
        The results as tensors. Later reads of the variables wait for the call, which waits for
        earlier ones of `also`.
    """

    def take_turn(variables: Sequence[Variable]) -> list[object]:
        # It writes nothing, but a tf.function orders reads around it as around a write.
        return [tf.raw_ops.DisableCopyOnRead(resource=variable.handle) for variable in variables]

    with tf.control_dependencies(take_turn(also)):
        used = [separate_memory(variable) for variable in variables]
        memory = [memory_tensor(variable) for variable in variables]
        count = len(inputs) + len(memory)

        def call(*arrays: Array) -> list[Array]:
            return function(*arrays[:count])

        if tf.executing_eagerly():
            views = [writable_view(np.asarray(memoryview(x))) for x in memory]
            results = [tf.constant(x) for x in function(*(x.numpy() for x in inputs), *views)]
        else:
            results = call_in_graph(call, [*inputs, *memory, *used], types)
    with tf.control_dependencies(results):
        take_turn([*variables, *also])
    return results


HUGE = 2 << 20
LEAST = 32 << 20
"""Smallest size of an array in bytes for which the request pays off; it takes seconds, once."""

_COLLAPSE = 25  # MADV_COLLAPSE of Linux 6.1, which Python's mmap does not name yet


def hold_in_large_pages(*arrays: Array) -> list[Array]:
    """Ask Linux to move these arrays to pages of 2 MB; their values do not change.

    This is only a request. Other systems, kernels before 6.1 and a full memory ignore it
    silently. A page of 4 kB contains about a hundred rows. A large table has a million of these
    pages, but the processor caches the addresses of only a few thousand.

    Args:
        *arrays: contiguous NumPy arrays.

    Returns:
        An empty list, as `on_host` needs a list.

    >>> import numpy as np
    >>> hold_in_large_pages(np.zeros(1000))
    []
    """
    if not sys.platform.startswith("linux"):
        return []
    for x in arrays:
        start, end = -(-x.ctypes.data // HUGE) * HUGE, (x.ctypes.data + x.nbytes) // HUGE * HUGE
        if x.nbytes >= LEAST and start < end:
            _advise(start, end, mmap.MADV_HUGEPAGE)
            if _advise(start, end, _COLLAPSE) not in (0, errno.EINVAL):
                for page in range(start, end, HUGE):  # Linux stops at the first that it cannot move
                    _advise(page, page + HUGE, _COLLAPSE)
    return []


def _advise(start: int, end: int, advice: int) -> int:
    """Call madvise for a range of addresses; return its error, 0 for none."""
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    failed = madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), advice)
    return ctypes.get_errno() if failed else 0
