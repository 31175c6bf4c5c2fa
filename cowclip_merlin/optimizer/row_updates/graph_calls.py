"""Call Python functions from graphs, and free them with their graphs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

from cowclip_merlin import compat
from cowclip_merlin.types import DType, Graph, Tensor

tf = compat.tensorflow()


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
    for graph in _graphs_of_functions() or [tf.compat.v1.get_default_graph()]:
        graph._cowclip_functions = [*getattr(graph, "_cowclip_functions", ()), function]
    held = weakref.ref(function)
    return tf.numpy_function(lambda *arrays: held()(*arrays), inputs, types)


def _graphs_of_functions() -> list[Graph]:
    """List the graphs of the `tf.function`s that are traced now, the innermost first."""
    graphs, graph = [], tf.compat.v1.get_default_graph()
    while hasattr(graph, "outer_graph"):
        graphs.append(graph)
        graph = graph.outer_graph
    return graphs
