"""Call functions of NumPy arrays that write into the memory of TensorFlow's variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.optimizer.row_updates.graph_calls import call_in_graph
from cowclip_merlin.tables.memory_views import memory_tensor, separate_memory, writable_view
from cowclip_merlin.types import Array, DType, Tensor, Variable

tf = compat.tensorflow()


def _written(variables: Sequence[Variable], done: Sequence[Tensor]) -> None:
    """Make later reads of these variables wait for the tensors `done`."""
    with tf.control_dependencies(done):
        for variable in variables:
            # It writes nothing, but a tf.function orders later reads as after a write.
            tf.raw_ops.DisableCopyOnRead(resource=variable.handle)


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
) -> list[Tensor]:
    """Call a function of NumPy arrays that writes into the memory of variables.

    Args:
        function: takes the inputs and the variables' memory, returns a list of arrays.
        inputs: tensors.
        variables: variables that the function may write, of rank 1 or more.
        types: data types of the results.

    Returns:
        The results as tensors. Later reads of the variables wait for the call.
    """
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
    _written(variables, results)
    return results
