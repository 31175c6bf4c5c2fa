"""Write `config.pbtxt`, in which Triton finds the inputs and the output of a model."""

from __future__ import annotations

from collections.abc import Sequence

from cowclip_merlin.serving.triton.model import KINDS, OUTPUT
from cowclip_merlin.serving.triton.settings import RepositorySettings

_ESCAPED = {ord('"'): r"\"", ord("\\"): r"\\"} | {
    code: f"\\{code:03o}" for code in (*range(32), 127)
}


def config_text(
    categorical: Sequence[str], continuous: Sequence[str], settings: RepositorySettings
) -> str:
    """Return the text of `config.pbtxt` for a model with one input per column.

    The inputs have the names of the columns. Each row has one value of each: a string of a
    categorical column, a 64-bit float of a continuous one.

    Args:
        categorical: names of the categorical columns.
        continuous: names of the continuous columns.
        settings: name of the model and size of its batches.
    """
    columns = {"categorical": categorical, "continuous": continuous}
    tensors = [_tensor("input", n, KINDS[kind]) for kind, names in columns.items() for n in names]
    head = [
        f"name: {quoted(settings.model_name)}",
        'backend: "python"',
        f"max_batch_size: {settings.max_batch_size}",
    ]
    # The Python backend would copy all tensors to a GPU and back, for a model without GPU code.
    tail = ["dynamic_batching { }", "instance_group [ { kind: KIND_CPU count: 1 } ]"]
    return "\n".join([*head, *tensors, _tensor("output", OUTPUT, "TYPE_FP32"), *tail]) + "\n"


def quoted(text: str) -> str:
    r"""Quote a string for protobuf's text format.

    >>> print(quoted('a "b"\n'))
    "a \"b\"\012"
    """
    return f'"{text.translate(_ESCAPED)}"'


def _tensor(kind: str, name: str, data_type: str) -> str:
    return f"{kind} [ {{ name: {quoted(name)} data_type: {data_type} dims: [ 1 ] }} ]"
