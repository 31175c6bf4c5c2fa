"""Write `config.pbtxt`, in which Triton finds the inputs and the output of a model."""

from __future__ import annotations

from collections.abc import Sequence

from cowclip_merlin.serving.triton.model import OFFSETS, OUTPUT, VALUES, input_types
from cowclip_merlin.serving.triton.settings import RepositorySettings

_ESCAPED = {ord('"'): r"\"", ord("\\"): r"\\"} | {
    code: f"\\{code:03o}" for code in (*range(32), 127)
}


def config_text(
    categorical: Sequence[str],
    continuous: Sequence[str],
    settings: RepositorySettings,
    lists: Sequence[str] = (),
) -> str:
    """Return the text of `config.pbtxt` for a model with one input per column.

    The inputs have the names of the columns. Each row has one value of each: a string of a
    categorical column, a 64-bit float of a continuous one. A list column has two inputs, of which
    the first dimension is not the number of rows. Triton cannot batch such requests.

    Args:
        categorical: names of the categorical columns without lists.
        continuous: names of the continuous columns.
        settings: name of the model and size of its batches.
        lists: names of the list columns.
    """
    types = input_types({"categorical": categorical, "continuous": continuous, "lists": lists})
    flat = {name + end for name in lists for end in (VALUES, OFFSETS)}
    row = [-1, 1] if lists else [1]
    tensors = [_tensor("input", n, kind, [-1] if n in flat else row) for n, kind in types.items()]
    head = [
        f"name: {quoted(settings.model_name)}",
        'backend: "python"',
        f"max_batch_size: {0 if lists else settings.max_batch_size}",
    ]
    # The Python backend would copy all tensors to a GPU and back, for a model without GPU code.
    tail = ["instance_group [ { kind: KIND_CPU count: 1 } ]"]
    tail = tail if lists else ["dynamic_batching { }", *tail]
    return "\n".join([*head, *tensors, _tensor("output", OUTPUT, "TYPE_FP32", row), *tail]) + "\n"


def quoted(text: str) -> str:
    r"""Quote a string for protobuf's text format.

    >>> print(quoted('a "b"\n'))
    "a \"b\"\012"
    """
    return f'"{text.translate(_ESCAPED)}"'


def _tensor(kind: str, name: str, data_type: str, dims: Sequence[int]) -> str:
    shape = ", ".join(map(str, dims))
    return f"{kind} [ {{ name: {quoted(name)} data_type: {data_type} dims: [ {shape} ] }} ]"
