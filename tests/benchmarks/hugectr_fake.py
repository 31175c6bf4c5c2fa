"""A stand-in for the Python module `hugectr` that computes nothing and checks every call.

Names and types of arguments are those of NVIDIA-Merlin/HugeCTR at the tags v23.12.00 and v24.06.00
(HugeCTR/include/pybind/*_wrapper.hpp), where they are the same. Of the optional arguments and of
the members of enumerations, those are here that the benchmark uses. As pybind11 does, a call
refuses unknown arguments, missing required ones and wrong types.

The readers read the files of `prepare --hugectr`, and the models do only in the right order what
HugeCTR's Model does in epoch mode (`Model::train` and `Model::eval`): read files, then batches,
then copy tensors. The logit of a row is its first continuous value. In evaluation, the loss
replaces logits by probabilities (`BinaryCrossEntropy_Kernel` in HugeCTR/src/loss.cu).
"""

from __future__ import annotations

import functools
import inspect
import types
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

__version__ = "24.6.0"

Check_t = Enum("Check_t", "Sum Non")
DataReaderType_t = Enum("DataReaderType_t", "Norm Raw Parquet RawAsync")
Embedding_t = Enum("Embedding_t", "LocalizedSlotSparseEmbeddingHash")
Initializer_t = Enum("Initializer_t", "Default Uniform XavierNorm XavierUniform Zero")
LAYERS = "Add BinaryCrossEntropyLoss Concat FmOrder2 InnerProduct ReduceSum ReLU"
Layer_t = Enum("Layer_t", f"{LAYERS} Reshape Slice")
Optimizer_t = Enum("Optimizer_t", "Ftrl Adam RMSProp AdaGrad MomentumSGD Nesterov SGD")
Tensor_t = Enum("Tensor_t", "Train Evaluate")
Update_t = Enum("Update_t", "Local Global LazyGlobal")


def require(holds: bool, message: str) -> None:
    """Raise an error where HugeCTR would end with one, or compute something else."""
    if not holds:
        raise RuntimeError(message)


def fits(value: Any, kind: Any) -> bool:
    """Whether pybind11 takes a value as an argument of this type."""
    if get_args(kind):
        return isinstance(value, list) and all(fits(each, get_args(kind)[0]) for each in value)
    if inspect.isfunction(kind):
        return getattr(value, "made_by", None) is kind
    kinds = (int, float) if kind is float else kind
    return isinstance(value, kinds) and isinstance(value, bool) == (kind is bool)


def checked(signature: Any) -> Any:
    """Make a function that checks its arguments and returns them, with the defaults."""

    @functools.wraps(signature)
    def call(**given: Any) -> types.SimpleNamespace:
        bound = inspect.signature(signature).bind(**given)  # raises a TypeError
        for name, kind in get_type_hints(signature).items():
            if name in given and not fits(given[name], kind):
                raise TypeError(f"{signature.__name__}: incompatible type of {name}, not {kind}")
        bound.apply_defaults()
        return types.SimpleNamespace(made_by=call, **bound.arguments)

    return call


# A default that nothing reads is `...`.
# fmt: off
@checked
def CreateSolver(*, model_name: str = ..., seed: int = ..., lr: float = 0.001,
                 max_eval_batches: int = 100, batchsize_eval: int = 2048, batchsize: int = 2048,
                 vvgpu: list[list] = ..., repeat_dataset: bool = True, i64_input_key: bool = False,
                 drop_incomplete_batch: bool = True): ...
@checked
def CreateOptimizer(*, optimizer_type: Optimizer_t = ..., update_type: Update_t = ...,
                    beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-7): ...
@checked
def DataReaderParams(*, data_reader_type: DataReaderType_t, source: list[str], eval_source: str,
                     check_type: Check_t, slot_size_array: list[int] = ...): ...
@checked
def DataReaderSparseParam(*, top_name: str, nnz_per_slot: list[int], is_fixed_length: bool,
                          slot_num: int): ...
@checked
def Input(*, label_dim: int, label_name: str, dense_dim: int, dense_name: str,
          data_reader_sparse_param_array: list[DataReaderSparseParam]): ...
@checked
def SparseEmbedding(*, embedding_type: Embedding_t, embedding_vec_size: int, combiner: str,
                    sparse_embedding_name: str, bottom_name: str, slot_size_array: list[int] = ...,
                    optimizer: CreateOptimizer = ...): ...
@checked
def DenseLayer(*, layer_type: Layer_t, bottom_names: list[str], top_names: list[str],
               num_output: int = 1, bias_init_type: Initializer_t = ..., leading_dim: int = 0,
               ranges: list[tuple] = ..., out_dim: int = 0, axis: int = 1): ...
@checked
def _model(*, solver: CreateSolver, reader_params: DataReaderParams,
           opt_params: CreateOptimizer): ...
@checked
def _check_out_tensor(*, tensor_name: str, tensor_type: Tensor_t): ...
# fmt: on


class Reader:
    """Batches of the files of a list, in order; the last one may be shorter."""

    def __init__(self, batch: int, *, drop_incomplete: bool) -> None:
        self.batch, self.drop_incomplete = batch, drop_incomplete
        self.left: list[pa.Table] | None = None

    def set_source(self, file_name: str) -> None:
        lines = Path(file_name).read_text(encoding="utf-8").splitlines()
        table = pa.concat_tables(pq.read_table(name) for name in lines[1 : 1 + int(lines[0])])
        batches = [table.slice(i, self.batch) for i in range(0, len(table), self.batch)]
        least = self.batch if self.drop_incomplete else 1
        self.left = [each for each in batches if len(each) >= least]

    def next(self) -> pa.Table | None:
        require(self.left is not None, "Start the data reader first")
        return self.left.pop(0) if self.left else None


class Model:
    """A model, and what was done with it.

    Attributes:
        given: its arguments.
        parts: what was added.
        tensors: names of the tensors.
        read: those that a layer reads.
    """

    def __init__(self, **given: Any) -> None:
        self.given = _model(**given)
        self.solver = solver = self.given.solver
        require(not solver.repeat_dataset, "only the epoch mode is checked here")
        require(solver.i64_input_key, "the keys of the files are 64-bit")
        self.parts, self.tensors, self.read = [], set(), set()
        self.compiled = self.synchronized = self.trained = False
        self.shown, self.evaluated = {}, 0
        self._train = Reader(solver.batchsize, drop_incomplete=solver.drop_incomplete_batch)
        self._eval = Reader(solver.batchsize_eval, drop_incomplete=False)

    def add(self, part: Any) -> None:
        require(not self.compiled, "add before compile")
        if part.made_by is Input:
            (ids,) = part.data_reader_sparse_param_array
            require(len(ids.nnz_per_slot) == ids.slot_num, "slot num != nnz_per_slot.size()")
            sparse = [ids.top_name]
            bottoms, tops = [], [part.label_name, part.dense_name, *sparse]
        elif part.made_by is SparseEmbedding:
            sizes = self.given.reader_params.slot_size_array
            require(part.slot_size_array == sizes, "slot sizes differ")
            require(part.combiner in ("sum", "mean"), "No such combiner type")
            bottoms, tops = [part.bottom_name], [part.sparse_embedding_name]
        else:
            bottoms, tops = part.bottom_names, part.top_names
        require({*bottoms} <= self.tensors, f"{bottoms}: a bottom tensor name does not exist")
        require(not {*tops} & self.tensors, f"{tops}: a top tensor name already exists")
        self.tensors |= {*tops}
        self.read |= {*bottoms}
        self.parts.append(part)

    def compile(self) -> None:
        require("loss" in self.tensors, "no loss")
        self.compiled = True

    def get_learning_rate_scheduler(self) -> Any:
        return types.SimpleNamespace(get_next=lambda: self.solver.lr)  # warmup_steps is 1

    def set_learning_rate(self, lr: float) -> None:
        require(lr == self.solver.lr, "another rate")

    def get_data_reader_train(self) -> Reader:
        return self._train

    def get_data_reader_eval(self) -> Reader:
        return self._eval

    def train(self) -> bool:
        require(self.compiled, "compile first")
        self.synchronized, batch = False, self._train.next()
        self.trained |= batch is not None
        return batch is not None

    def eval(self) -> bool:
        self.synchronized, batch = False, self._eval.next()
        self.evaluated += 1
        require(self.evaluated <= self.solver.max_eval_batches, "the metrics have no more room")
        if batch is None:
            return False
        label, logit = (batch.column(name).to_numpy() for name in ("label", "I1"))
        probability = 1 / (1 + np.exp(-logit.astype(np.float64)))
        # Rows after the last one of the files hold what an earlier batch left there.
        rest = np.full(self.solver.batchsize_eval - len(batch), np.nan)
        for name, column in (("label", label), ("logit", probability)):
            self.shown[name] = np.append(column, rest)[:, None].astype(np.float32)
        return True

    def get_current_loss(self) -> float:
        require(self.trained, "no step was made")
        self.synchronized = True
        return 0.5

    def check_out_tensor(self, **given: Any) -> np.ndarray:
        at = _check_out_tensor(**given)
        require(at.tensor_type is Tensor_t.Evaluate, "only the evaluation has tensors here")
        require(self.synchronized, "the GPU still computes")
        return self.shown[at.tensor_name]
