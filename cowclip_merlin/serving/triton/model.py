"""Model for Triton's Python backend: raw values of a click log in, predictions out.

`cowclip export --triton` copies this file beside the model. It needs Triton 23.09 or newer, and
TensorFlow and NumPy in the Python of Triton's backend.
A string is the value of a categorical column, and "" is missing. A number is NaN if it is missing.
The lists of a column `genres` are two tensors, as clients of Merlin Systems send them:
`genres__values` has the strings of all rows, and row i has those from `genres__offsets[i]` up to
`genres__offsets[i + 1]`. Vectors are one tensor of rows of one length.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # this package is not in the Python of the backend
    from typing import TypeAlias

    from cowclip_merlin.types import Array, JsonObject

    Parts: TypeAlias = "tuple[Array, Array, list[tuple[Array, Array]], list[Array]]"

OUTPUT = "values"
KINDS = {"categorical": "TYPE_STRING", "continuous": "TYPE_FP64"}
VALUES, OFFSETS = "__values", "__offsets"


class TritonPythonModel:
    """The class that Triton's Python backend looks for."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model.

        Args:
            args: "model_config" is the content of config.pbtxt as JSON.

        Raises:
            ValueError: if config.pbtxt has other inputs or outputs than the model.
        """
        import triton_python_backend_utils as pb_utils

        here = Path(__file__).resolve().parent
        columns = json.loads((here / "columns.json").read_text(encoding="utf-8"))
        check_config(json.loads(args["model_config"]), columns)
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        import tensorflow as tf

        tf.config.set_visible_devices([], "GPU")
        self._tf, self._utils = tf, pb_utils
        self._categorical, self._continuous = (columns[kind] for kind in KINDS)
        self._lists, self._most_rows = columns.get("lists", []), columns.get("max_batch_size")
        self._vectors, self._outputs = columns.get("vectors", {}), columns["outputs"]
        with TemporaryDirectory() as folder:  # TensorFlow takes [, * and ? in a path for a pattern
            link = Path(folder) / "model.savedmodel"
            link.symlink_to(here / link.name)
            self._model = tf.saved_model.load(str(link))  # keeps variables alive
        self._score = self._model.signatures["serving_default"]
        # The first call is slow.
        one_row = (np.full((1, len(self._categorical)), ""), np.zeros((1, len(self._continuous))))
        no_values = (np.empty(0, object), np.zeros(1, np.int32))
        zeros = [np.zeros((1, length), np.float32) for length in self._vectors.values()]
        self._predict(named_inputs(*one_row, [no_values] * len(self._lists), zeros))

    def execute(self, requests: list[Any]) -> list[Any]:
        """Score all requests at once; a request with an invalid number gets an error instead."""
        responses: list[Any] = [None] * len(requests)
        valid = {}
        for position, request in enumerate(requests):
            try:
                valid[position] = self._read(request)
            except ValueError as error:
                responses[position] = self._error(str(error))
        if valid:
            given = [named_inputs(*parts) for parts in valid.values()]
            whole = {name: np.concatenate([each[name] for each in given]) for name in given[0]}
            ends = np.cumsum([len(each["continuous"]) for each in given])[:-1]
            scores = np.split(self._predict(whole), ends)
            for position, score in zip(valid, scores):
                responses[position] = self._response(score)
        return responses

    def _response(self, scores: Array) -> Any:
        """Return the response with the scores [b, T] of a request, or with its error."""
        wrong = np.isnan(scores).any(axis=1)
        if wrong.any():
            return self._error(f"row {wrong.argmax()} has a number too large for 32 bits")
        columns = [np.ascontiguousarray(column[:, None]) for column in scores.T]
        return self._utils.InferenceResponse(
            [self._utils.Tensor(name, x) for name, x in zip(self._outputs, columns)]
        )

    def _error(self, words: str) -> Any:
        error = self._utils.TritonError
        return self._utils.InferenceResponse([], error(words, error.INVALID_ARG))

    def _read(self, request: Any) -> Parts:
        """Return the columns of a request.

        These are strings [b, F], numbers [b, C], of each list column values and lengths [b], and
        the vectors of each column, [b, length].
        """

        def column(name: str) -> Array:
            return self._utils.get_input_tensor_by_name(request, name).as_numpy()

        texts = [column(name) for name in self._categorical]
        numbers = [column(name) for name in self._continuous]
        lists = []
        for name in self._lists:
            values = column(name + VALUES)
            lists.append((values, lengths_of(column(name + OFFSETS), values, name)))
        vectors = [column(name) for name in self._vectors]
        counted = [*texts, *numbers, *(lengths for _, lengths in lists), *vectors]
        rows = self._number_of_rows(counted)
        self._check_finite(numbers, vectors)
        whole = np.concatenate([np.empty((rows, 0)), *numbers], axis=1)
        return np.concatenate([np.empty((rows, 0), object), *texts], axis=1), whole, lists, vectors

    def _check_finite(self, numbers: list[Array], vectors: list[Array]) -> None:
        for name, x in zip(self._continuous, numbers):
            if np.isinf(x).any():
                raise ValueError(f"{name} is infinite; give a finite number, or NaN if missing")
        for name, x in zip(self._vectors, vectors):
            if not np.isfinite(x).all():
                raise ValueError(f"{name} has a number that is not finite; give a whole vector")

    def _number_of_rows(self, columns: list[Array]) -> int:
        """Return it; Triton checks the rows only of inputs that it may batch, so not with lists."""
        names = [*self._categorical, *self._continuous, *self._lists, *self._vectors]
        rows = len(columns[0])
        for name, column in zip(names, columns):
            if len(column) != rows:
                raise ValueError(f"{names[0]} has {rows} rows, but {name} has {len(column)}")
        if self._most_rows and rows > self._most_rows:
            raise ValueError(f"{rows} rows; give at most {self._most_rows}")
        return rows

    def _predict(self, given: dict[str, Array]) -> Array:
        """Return the value of each output, float32 [b, T]; `given` is of `named_inputs`."""
        tf = self._tf
        types = {"continuous": tf.float64, "lengths": tf.int32, "vectors": tf.float32}
        inputs = {
            name: tf.constant(x, types.get(name.partition("_")[0], tf.string))
            for name, x in given.items()
        }
        return self._score(**inputs)[OUTPUT].numpy()


def named_inputs(
    texts: Array, numbers: Array, lists: list[tuple[Array, Array]], vectors: list[Array]
) -> dict[str, Array]:
    """Name the arrays of some rows as the inputs of the model."""
    named = {"categorical": texts, "continuous": numbers}
    for i, (values, lengths) in enumerate(lists):
        named |= {f"values_{i}": values, f"lengths_{i}": lengths}
    return named | {f"vectors_{i}": x for i, x in enumerate(vectors)}


def lengths_of(offsets: Array, values: Array, name: str) -> Array:
    """Return how many values each row has, int32 [b].

    Args:
        offsets: where each row begins among the values, and the end of the last, [b + 1].
        values: the values of all rows, [m].
        name: the column.

    Raises:
        ValueError: if the offsets do not cut the values.

    >>> lengths_of(np.array([0, 2, 2]), np.array(["a", "b"]), "tags").tolist()
    [2, 0]
    """
    lengths = np.diff(offsets)
    ends = offsets[[0, -1]].tolist() if len(offsets) else None
    if ends != [0, len(values)] or (lengths < 0).any():
        raise ValueError(
            f"{name}{OFFSETS} must begin with 0, never fall, and end with {len(values)}, the "
            f"number of {name}{VALUES}"
        )
    return lengths.astype(np.int32)


def inputs_of(columns: JsonObject) -> dict[str, tuple[str, int]]:
    """Return the type and the last dimension of each input of a model, in order.

    >>> inputs_of({"continuous": ["I1"], "lists": ["tags"]})  # doctest: +NORMALIZE_WHITESPACE
    {'I1': ('TYPE_FP64', 1), 'tags__values': ('TYPE_STRING', -1),
     'tags__offsets': ('TYPE_INT32', -1)}
    >>> inputs_of({"vectors": {"text": 64}})
    {'text': ('TYPE_FP32', 64)}
    """
    found = {name: (kind, 1) for key, kind in KINDS.items() for name in columns.get(key, [])}
    for name in columns.get("lists", []):
        found |= {name + VALUES: ("TYPE_STRING", -1), name + OFFSETS: ("TYPE_INT32", -1)}
    return found | {name: ("TYPE_FP32", size) for name, size in columns.get("vectors", {}).items()}


def check_config(config: JsonObject, columns: JsonObject) -> None:
    """Reject a config.pbtxt that was written for another model.

    Args:
        config: "input" and "output" of config.pbtxt; each has "name", "data_type" and "dims".
        columns: names of the categorical, continuous and list columns and of the outputs, and the
            lengths of the vectors.

    Raises:
        ValueError: if an input or output differs in name, type or last dimension.

    >>> given = {"name": "I1", "data_type": "TYPE_FP64", "dims": [1]}
    >>> click = {"name": "click", "data_type": "TYPE_FP32", "dims": [1]}
    >>> columns = {"continuous": ["I1"], "outputs": ["click"]}
    >>> check_config({"input": [given], "output": [click]}, columns)
    """
    outputs = {name: ("TYPE_FP32", 1) for name in columns["outputs"]}
    for key, wanted in (("input", inputs_of(columns)), ("output", outputs)):
        given = {x["name"]: (x["data_type"], int(x["dims"][-1])) for x in config[key]}
        wrong = sorted(name for name in {*given, *wanted} if given.get(name) != wanted.get(name))
        if wrong:
            raise ValueError(
                f"config.pbtxt and the model differ in the {key}s {', '.join(wrong)}; use the "
                "config.pbtxt that was exported with this version"
            )
