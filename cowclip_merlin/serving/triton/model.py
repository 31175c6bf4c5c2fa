"""Model for Triton's Python backend: raw values of a click log in, click probabilities out.

`cowclip export --triton` copies this file beside the model. It needs Triton 23.09 or newer, and
TensorFlow and NumPy in the Python of Triton's backend.
A string is the value of a categorical column, and "" is missing. A number is NaN if it is missing.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # this package is not in the Python of the backend
    import numpy.typing as npt

    from cowclip_merlin.types import Array, JsonObject

OUTPUT = "probability"
KINDS = {"categorical": "TYPE_STRING", "continuous": "TYPE_FP64"}


class TritonPythonModel:
    """The class that Triton's Python backend looks for."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model.

        Args:
            args: "model_config" is the content of config.pbtxt as JSON.

        Raises:
            ValueError: if config.pbtxt has other inputs than the model.
        """
        import triton_python_backend_utils as pb_utils

        here = Path(__file__).resolve().parent
        columns = json.loads((here / "columns.json").read_text(encoding="utf-8"))
        check_inputs(json.loads(args["model_config"])["input"], columns)
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        import tensorflow as tf

        tf.config.set_visible_devices([], "GPU")
        self._tf, self._utils = tf, pb_utils
        self._categorical, self._continuous = (columns[kind] for kind in KINDS)
        self._model = tf.saved_model.load(str(here / "model.savedmodel"))  # keeps variables alive
        self._score = self._model.signatures["serving_default"]
        # The first call is slow.
        self._predict([[""] * len(self._categorical)], [[0.0] * len(self._continuous)])

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
            texts, numbers = (np.concatenate(parts) for parts in zip(*valid.values()))
            ends = np.cumsum([len(text) for text, _ in valid.values()])[:-1]
            scores = np.split(self._predict(texts, numbers), ends)
            for position, score in zip(valid, scores):
                responses[position] = self._response(score)
        return responses

    def _response(self, scores: Array) -> Any:
        """Return the response with the scores [b, 1] of a request, or with its error."""
        wrong = np.isnan(scores[:, 0])
        if wrong.any():
            return self._error(f"row {wrong.argmax()} has a number too large for 32 bits")
        return self._utils.InferenceResponse([self._utils.Tensor(OUTPUT, scores)])

    def _error(self, words: str) -> Any:
        error = self._utils.TritonError
        return self._utils.InferenceResponse([], error(words, error.INVALID_ARG))

    def _read(self, request: Any) -> tuple[Array, Array]:
        """Return the strings [b, F] and the numbers [b, C] of a request."""

        def column(name: str) -> Array:
            return self._utils.get_input_tensor_by_name(request, name).as_numpy()

        texts = np.concatenate([column(name) for name in self._categorical], axis=1)
        columns = [column(name) for name in self._continuous]
        numbers = np.concatenate([np.empty((len(texts), 0)), *columns], axis=1)
        infinite = np.isinf(numbers).any(axis=0)
        if infinite.any():
            name = self._continuous[infinite.argmax()]
            raise ValueError(f"{name} is infinite; give a finite number, or NaN if missing")
        return texts, numbers

    def _predict(self, texts: npt.ArrayLike, numbers: npt.ArrayLike) -> Array:
        """Return the click probabilities [b, 1], float32."""
        found = self._score(
            categorical=self._tf.constant(texts, self._tf.string),
            continuous=self._tf.constant(numbers, self._tf.float64),
        )
        return found[OUTPUT].numpy()


def check_inputs(inputs: list[JsonObject], columns: dict[str, list[str]]) -> None:
    """Reject a config.pbtxt that was written for another model.

    Args:
        inputs: "name" and "data_type" of each input.
        columns: names of the categorical and of the continuous columns.

    Raises:
        ValueError: if the columns or their types differ.

    >>> check_inputs([{"name": "I1", "data_type": "TYPE_FP64"}], {"continuous": ["I1"]})
    """
    given = {each["name"]: each["data_type"] for each in inputs}
    wanted = {name: KINDS[kind] for kind, names in columns.items() for name in names}
    wrong = sorted(name for name in {*given, *wanted} if given.get(name) != wanted.get(name))
    if wrong:
        raise ValueError(
            f"config.pbtxt and the model differ in the inputs {', '.join(wrong)}; use the "
            "config.pbtxt that was exported with this version"
        )
