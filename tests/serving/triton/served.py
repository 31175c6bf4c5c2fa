"""Runs a model of a repository as Triton's Python backend does, with a stand-in for its module.

    python served.py MODEL_FOLDER VERSION REQUESTS.json ANSWERS.json

REQUESTS: a list of batches, each a list of requests, each a list of rows: column -> value.
ANSWERS: likewise values, of several outputs by name, or the text of the error of a request.
"""

import importlib.util
import json
import sys
import types
from pathlib import Path

import numpy as np
from google.protobuf import json_format


class Tensor:
    def __init__(self, name, values):
        assert isinstance(values, np.ndarray)
        self._name, self._values = name, values

    def name(self):
        return self._name

    def as_numpy(self):
        return self._values


class TritonError:
    INVALID_ARG = object()

    def __init__(self, message, code):
        assert code is self.INVALID_ARG
        self.message = message


class InferenceResponse:
    def __init__(self, output_tensors, error=None):
        assert bool(output_tensors) != bool(error)
        self.outputs, self.error = output_tensors, error


def tensor_by_name(request, name):
    """None for a name that is not there, as in Triton."""
    return next((tensor for tensor in request if tensor.name() == name), None)


def stand_in():
    module = types.ModuleType("triton_python_backend_utils")
    module.Tensor, module.TritonError = Tensor, TritonError
    module.InferenceResponse = InferenceResponse
    module.get_input_tensor_by_name = tensor_by_name
    return module


KINDS = {
    "TYPE_STRING": lambda values: np.array([v.encode() for v in values], object),
    "TYPE_FP64": lambda values: np.array(values, np.float64),
    "TYPE_INT32": lambda values: np.array(values, np.int32),
    "TYPE_FP32": lambda values: np.array(values, np.float32),
}


def values_of(name, rows, dims):
    """The values of an input: one of each row, or of lists all of them, or their offsets."""
    if dims != ["-1"]:
        return [row[name] for row in rows]
    column, _, what = name.rpartition("__")
    lists = [row[column] for row in rows]
    if what == "values":
        return [value for values in lists for value in values]
    return np.cumsum([0, *map(len, lists)])


def tensors(rows, config):
    """The inputs of a request, in an order that is not that of config.pbtxt.

    A request that is no list of rows has the tensors themselves: name -> values.
    """
    found = []
    for each in reversed(config["input"]):
        name, dims = each["name"], each["dims"]
        values = rows[name] if isinstance(rows, dict) else values_of(name, rows, dims)
        array = KINDS[each["data_type"]](values)
        last = [] if dims == ["-1"] else [int(dims[-1])]
        found.append(Tensor(name, array.reshape(-1, *last)))
    return found


def answer(response, rows):
    if response.error:
        return response.error.message
    found = {}
    for output in response.outputs:
        values = output.as_numpy()
        assert values.dtype == np.float32 and values.shape == (len(rows), 1)
        assert values.flags.c_contiguous
        found[output.name()] = values[:, 0].tolist()
    return found["probability"] if list(found) == ["probability"] else found


def serve(folder, version, batches):
    sys.path.insert(0, str(Path(__file__).parent))
    from model_config import parse

    text = (folder / "config.pbtxt").read_text(encoding="utf-8")
    config = json_format.MessageToDict(parse(text), preserving_proto_field_name=True)
    sys.modules["triton_python_backend_utils"] = stand_in()
    spec = importlib.util.spec_from_file_location("model", folder / version / "model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.TritonPythonModel()
    model.initialize({"model_config": json.dumps(config)})
    answers = []
    for requests in batches:
        responses = model.execute([tensors(rows, config) for rows in requests])
        answers.append([answer(*pair) for pair in zip(responses, requests, strict=True)])
    return answers


if __name__ == "__main__":
    folder, version, given, out = sys.argv[1:]
    answers = serve(Path(folder), version, json.loads(Path(given).read_text(encoding="utf-8")))
    assert not {"cowclip_merlin", "merlin", "nvtabular"} & set(sys.modules)
    Path(out).write_text(json.dumps(answers), encoding="utf-8")
