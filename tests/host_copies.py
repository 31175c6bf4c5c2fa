"""Which tensors of a graph would be copied between the host and a GPU, as far as kernels tell.

The registrations of a GPU's kernels are in every TensorFlow, and so is the memory of their
arguments. A node with a GPU kernel is on the GPU, all others are on the host. Each edge between
the two memories is a copy, for which the host or the device waits.
"""

from tensorflow.core.protobuf import config_pb2
from tensorflow.python.eager import context
from tensorflow.python.framework import dtypes, kernels, op_def_registry

ON_HOST = {x.as_datatype_enum for x in (dtypes.int32, dtypes.string, dtypes.resource)}


def optimized_graph(function, *args):
    """The largest graph that TensorFlow runs for a call, after its optimizations."""
    context.context().enable_graph_collection()
    try:
        function(*args)
        found = context.context().export_run_metadata()
    finally:
        context.context().disable_graph_collection()
    metadata = config_pb2.RunMetadata()
    metadata.ParseFromString(found.SerializeToString())
    return max((f.post_optimization_graph for f in metadata.function_graphs),
               key=lambda graph: len(graph.node))  # fmt: skip


def copies(graph):
    """Pairs of operations between which a tensor goes to the other memory."""
    return Placement(graph).copies()


class Placement:
    """Where the nodes of a graph are, and in which memory their tensors."""

    def __init__(self, graph):
        self.nodes = {node.name: node for node in graph.node}
        self.kernels = {node.name: gpu_kernel(node) for node in graph.node}
        self.host = {name for name, kernel in self.kernels.items() if kernel is None}

    def copies(self):
        found = set()
        for node in self.nodes.values():
            for number, (source, output) in enumerate(inputs(node)):
                made_by = self.nodes[source]
                if node.op != "NoOp" and self._is_on_host(made_by, output) != self._wants_host(
                    node, number
                ):
                    found.add((made_by.op, node.op))
        return sorted(found)

    def _is_on_host(self, node, output):
        if node.op == "_Arg":
            return node.attr["T"].type in ON_HOST
        if node.op in CALLS:
            return node.attr["Tout"].list.type[output] in ON_HOST
        return self._host_memory(node, "output_arg", output)

    def _wants_host(self, node, number):
        if node.op == "_Retval":
            return node.attr["T"].type in ON_HOST
        if node.op in CALLS:
            return node.attr["Tin"].list.type[number] in ON_HOST
        return self._host_memory(node, "input_arg", number)

    def _host_memory(self, node, which, number):
        if node.name in self.host:
            return True
        return argument_names(node, which)[number] in self.kernels[node.name].host_memory_arg


CALLS = ("PartitionedCall", "StatefulPartitionedCall")  # of what XLA compiles
NO_KERNEL = ("_Arg", "_Retval", "NoOp")


def gpu_kernel(node):
    """The registration of a node's GPU kernel; None if it has none."""
    every = kernels.get_registered_kernels_for_op(node.op).kernel
    fit = [k for k in every if k.device_type in ("GPU", "DEFAULT") and allows(k, node)]
    return fit[0] if fit else True if node.op in NO_KERNEL else None


def allows(kernel, node):
    for constraint in kernel.constraint:
        value = node.attr[constraint.name]
        types = [value.type] if value.type else value.list.type
        if not set(types) <= set(constraint.allowed_values.list.type):
            return False
    return True


def argument_names(node, which):
    """The name of each input or output; one argument may stand for several."""
    names = []
    for argument in getattr(op_def_registry.get(node.op), which):
        count = 1
        if argument.number_attr:
            count = node.attr[argument.number_attr].i
        elif argument.type_list_attr:
            count = len(node.attr[argument.type_list_attr].list.type)
        names += [argument.name] * count
    return names


def inputs(node):
    """The name of each source of data, and the number of its output."""
    data = (name for name in node.input if not name.startswith("^"))
    return [(name, int(output or 0)) for name, _, output in (x.partition(":") for x in data)]
