"""A stand-in for the Python module `hugectr` that computes nothing and checks every call.

It refuses unknown arguments, missing required ones and wrong types, as pybind11 does
(hugectr_signatures.py), and graphs that do not fit together (hugectr_graph.py). Its readers read
the files of `prepare --hugectr`, and its models do only in the right order what HugeCTR's Model
does in epoch mode (`Model::train` and `Model::eval`): read files, then batches, then copy tensors.
The logit of a row is its first continuous value. In evaluation, the loss replaces logits by
probabilities (`BinaryCrossEntropy_Kernel` in HugeCTR/src/loss.cu, both versions).
"""

from __future__ import annotations

import enum
import types
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hugectr_graph import Graph, require
from hugectr_signatures import ENUMS, TEXTS, VERSIONS, Argument, arguments, members

SCALARS = {"str": str, "int": int, "float": (int, float), "bool": bool, "dict": dict}
ITEMS = {
    "strs": str,
    "ints": int,
    "floats": (int, float),
    "lists": list,
    "pairs": tuple,
    "objects": object,
}


class Fake(types.ModuleType):
    """The module.

    Attributes:
        calls: name and arguments of every call so far.
        models: every model so far.
    """

    def __init__(self, version: str) -> None:
        super().__init__("hugectr")
        self.version, self.__version__ = version, VERSIONS[version]
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.models: list[Model] = []
        for name in ENUMS:
            setattr(self, name, enum.Enum(name, members(name, version)))
        for name in TEXTS:
            if "." not in name and name != "Model":
                setattr(self, name, self._maker(name))

    def _maker(self, name: str) -> Any:
        def make(**given: Any) -> types.SimpleNamespace:
            self.calls.append((name, given))
            return types.SimpleNamespace(made_by=name, **self.checked(name, given))

        return make

    def Model(self, **given: Any) -> Model:
        self.calls.append(("Model", given))
        self.models.append(Model(self, **self.checked("Model", given)))
        return self.models[-1]

    def checked(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        """Return all arguments of a call, with the defaults.

        Raises:
            TypeError: if the call does not fit the signature.
        """
        known = arguments(name, self.version)
        for argument in given:
            if argument not in known:
                raise TypeError(f"{name}: incompatible arguments: {argument} is unknown")
        for argument, described in known.items():
            if argument in given:
                self._check_type(f"{name}: {argument}", described, given[argument])
            elif described.default is None:
                raise TypeError(f"{name}: incompatible arguments: {argument} is missing")
        return {a: given.get(a, described.value) for a, described in known.items()}

    def _check_type(self, where: str, described: Argument, value: Any) -> None:
        kind = described.kind
        if kind in SCALARS:
            fits = isinstance(value, SCALARS[kind]) and isinstance(value, bool) == (kind == "bool")
        elif kind in ITEMS:
            fits = isinstance(value, list) and all(isinstance(x, ITEMS[kind]) for x in value)
        elif kind in ENUMS:
            fits = isinstance(value, getattr(self, kind))
        else:
            fits = getattr(value, "made_by", None) == kind
        if not fits:
            raise TypeError(f"{where}: incompatible type {type(value).__name__}, not {kind}")


class Reader:
    """Batches of the files of a list, in order; the last one may be shorter."""

    def __init__(self, batch: int, *, drop_incomplete: bool) -> None:
        self.batch, self.drop_incomplete = batch, drop_incomplete
        self.left: list[pa.Table] = []
        self.started = False

    def set_source(self, file_name: str) -> None:
        lines = Path(file_name).read_text(encoding="utf-8").splitlines()
        table = pa.concat_tables(pq.read_table(name) for name in lines[1 : 1 + int(lines[0])])
        batches = [table.slice(i, self.batch) for i in range(0, len(table), self.batch)]
        if self.drop_incomplete:
            batches = [each for each in batches if len(each) == self.batch]
        self.left, self.started = batches, True

    def next(self) -> pa.Table | None:
        require(self.started, "Start the data reader first")
        return self.left.pop(0) if self.left else None


class Model:
    """A model, and what was done with it.

    Attributes:
        graph: its tensors.
        trained: rows of every training step.
        rates: learning rates that were set.
        shown: what the tensors hold that can be copied, by name.
    """

    def __init__(self, fake: Fake, *, solver: Any, reader_params: Any, opt_params: Any) -> None:
        require(not solver.repeat_dataset, "only the epoch mode is checked here")
        require(solver.i64_input_key, "the keys of the files are 64-bit")
        self.fake, self.solver, self.reader_params = fake, solver, reader_params
        self.optimizer = opt_params
        self.graph = Graph(solver.batchsize)
        self.trained: list[int] = []
        self.rates: list[float] = []
        self.shown: dict[str, np.ndarray] | None = None
        self.compiled = self.synchronized = False
        drop = solver.drop_incomplete_batch
        self._train = Reader(solver.batchsize, drop_incomplete=drop)
        self._eval = Reader(solver.batchsize_eval, drop_incomplete=False)
        self._evaluated = 0

    def add(self, part: Any) -> None:
        require(not self.compiled, "add before compile")
        kinds = {
            "Input": self.graph.add_input,
            "SparseEmbedding": self.graph.add_embedding,
            "DenseLayer": self.graph.add_layer,
        }
        kinds[part.made_by](part)
        if part.made_by == "SparseEmbedding":
            require(part.slot_size_array == self.reader_params.slot_size_array, "slot sizes differ")

    def compile(self) -> None:
        require(self.graph.loss, "no loss")
        self.compiled = True

    def get_learning_rate_scheduler(self) -> Any:
        return types.SimpleNamespace(get_next=lambda: self.solver.lr)  # warmup_steps is 1

    def set_learning_rate(self, lr: float) -> None:
        self.rates.append(self.fake.checked("Model.set_learning_rate", {"lr": lr})["lr"])

    def get_data_reader_train(self) -> Reader:
        return self._train

    def get_data_reader_eval(self) -> Reader:
        return self._eval

    def train(self) -> bool:
        require(self.compiled, "compile first")
        batch = self._train.next()
        self.synchronized = False
        if batch is not None:
            self.trained.append(len(batch))
        return batch is not None

    def eval(self) -> bool:
        batch = self._eval.next()
        self._evaluated += 1
        require(self._evaluated <= self.solver.max_eval_batches, "the metrics have no more room")
        self.synchronized, size = False, self.solver.batchsize_eval
        if batch is None:
            return False
        columns = [batch.column(name).to_numpy() for name in ("label", "I1")]
        columns[1] = 1 / (1 + np.exp(-columns[1].astype(np.float64)))
        # Rows after the last one of the files hold what an earlier batch left there.
        label, logit = (np.append(c, np.full(size - len(c), np.nan)) for c in columns)
        self.shown = {"label": label[:, None], "logit": logit[:, None]}
        return True

    def get_current_loss(self) -> float:
        require(bool(self.trained), "no step was made")
        self.synchronized = True
        return 0.5

    def check_out_tensor(self, **given: Any) -> np.ndarray:
        at = self.fake.checked("Model.check_out_tensor", given)
        require(at["tensor_type"].name == "Evaluate", "only the evaluation has tensors here")
        require(at["tensor_name"] in self.graph.shapes, f"Cannot find {at['tensor_name']}")
        require(self.synchronized and self.shown is not None, "the GPU still computes")
        return self.shown[at["tensor_name"]].astype(np.float32)
