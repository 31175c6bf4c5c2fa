"""Write `config.pbtxt`, in which Triton finds the inputs and the outputs of a model."""

from __future__ import annotations

from collections.abc import Sequence

from cowclip_merlin.serving.triton.model import inputs_of
from cowclip_merlin.serving.triton.settings import RepositorySettings
from cowclip_merlin.types import JsonObject

_ESCAPED = {ord('"'): r"\"", ord("\\"): r"\\"} | {
    code: f"\\{code:03o}" for code in (*range(32), 127)
}


def config_text(columns: JsonObject, settings: RepositorySettings) -> str:
    """Return the text of `config.pbtxt` for a model with one input per column.

    The inputs have the names of the columns. Each row has one value of each: a string of a
    categorical column, a 64-bit float of a continuous one, 32-bit floats of a vector. A list column
    has two inputs, of which the first dimension is not the number of rows. Triton cannot batch such
    requests.

    Args:
        columns: "categorical", "continuous", "lists" and "outputs" -> names; "vectors" -> name ->
            length.
        settings: name of the model and size of its batches.
    """
    lists = columns.get("lists", ())
    rows = [-1] if lists else []
    tensors = [
        _tensor("input", name, kind, [-1] if last == -1 else [*rows, last])
        for name, (kind, last) in inputs_of(columns).items()
    ]
    tensors += [_tensor("output", name, "TYPE_FP32", [*rows, 1]) for name in columns["outputs"]]
    head = [
        f"name: {quoted(settings.model_name)}",
        'backend: "python"',
        f"max_batch_size: {0 if lists else settings.max_batch_size}",
    ]
    # The Python backend would copy all tensors to a GPU and back, for a model without GPU code.
    tail = ["instance_group [ { kind: KIND_CPU count: 1 } ]"]
    tail = tail if lists else ["dynamic_batching { }", *tail]
    return "\n".join([*head, *tensors, *tail]) + "\n"


def quoted(text: str) -> str:
    r"""Quote a string for protobuf's text format.

    >>> print(quoted('a "b"\n'))
    "a \"b\"\012"
    """
    return f'"{text.translate(_ESCAPED)}"'


def _tensor(kind: str, name: str, data_type: str, dims: Sequence[int]) -> str:
    shape = ", ".join(map(str, dims))
    return f"{kind} [ {{ name: {quoted(name)} data_type: {data_type} dims: [ {shape} ] }} ]"
