"""Embedding tables of a Keras 3 model: rows that are brought up to date before they are read.

The variables of a table become instances of a subclass of TensorFlow's variables. Its reads and
writes make the steps first that the rows have missed, also in compiled functions. Graphs refer to
variables and tables weakly: a variable that was made in a graph would keep it, and so itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, wraps
from typing import Any
from weakref import ref

import numpy as np

from cowclip_merlin import compat, kernels
from cowclip_merlin.choices import RowSettings
from cowclip_merlin.errors import InputError
from cowclip_merlin.kernels.table_steps import Rows, TableSteps
from cowclip_merlin.tables.variable_memory import (
    memory_tensor,
    on_host,
    separate_memory,
    writable_view,
)
from cowclip_merlin.types import Array, IndexedSlices, Tensor, Variable

tf = compat.any_tensorflow()

_WRITES = ("assign", "scatter_", "batch_scatter_", "_strided_slice_assign", "_restore_from_tensors")


class Table:
    """One table and the moments of its Adam.

    Args:
        name: of the table, for errors.
        variables: weights and moments, float32 [N, d].
        settings: L2, clip and Adam.
        update: "exact", "lazy" or "dense".

    Attributes:
        variables: as given.
        steps: which of them rows have missed.
        owner: the table whose steps a read of the weights makes: this one, or None.

    Raises:
        InputError: the weights are not a float32 matrix in the memory of the host.
    """

    def __init__(
        self, name: str, variables: Sequence[Variable], settings: RowSettings, update: str
    ) -> None:
        w = variables[0]
        if w.dtype != tf.float32 or len(w.shape) != 2:
            raise InputError(
                f"{name}: tables must be float32 [rows, d], not {w.dtype.name} {list(w.shape)}"
            )
        if "GPU" in w.device:
            raise InputError(
                f"{name} is on a GPU, and its rows are updated on the CPU: make the model under "
                'tf.device("CPU")'
            )
        if w.shape[1] == 1:  # first-order weights
            settings = replace(settings, clip="none")
        self.name, self.variables = name, tuple(variables)
        self.steps = TableSteps(name, w.shape[0], settings, update, kernels.load("numba"))
        self.owner = self if update == "exact" else None
        if hasattr(w, "cowclip_table"):
            with tf.init_scope():
                flush(w)  # of an optimizer that had the table before
            w.cowclip_table = self.owner
        for variable in variables if self.owner else ():
            watch(variable)
            variable.cowclip_table = self

    def rows(self, w: Array) -> Rows:
        """Return the memory of the table; call it on the host only.

        Args:
            w: that of the weights.
        """
        moments = []
        for variable in self.variables[1:]:
            separate_memory(variable)
            moments.append(writable_view(np.asarray(memoryview(memory_tensor(variable)))))
        return Rows(w, *moments)


def step(tables: Sequence[Table], gradients: Sequence[IndexedSlices], alpha: Tensor) -> Tensor:
    """Make a step of these tables; refuse all gradients before a row changes.

    Args:
        tables: distinct ones.
        gradients: an entry for each occurrence of an id.
        alpha: learning rate with both bias corrections, a scalar.

    Returns:
        A tensor to wait for.
    """

    held = [ref(table) for table in tables]

    def run(alpha: Array, *arrays: Array) -> list[Array]:
        tables = [each() for each in held]
        entries, weights = arrays[: 2 * len(tables)], arrays[2 * len(tables) :]
        for table in tables:
            if getattr(table.variables[0], "cowclip_table", None) is not table.owner:
                raise InputError(
                    f"{table.name} belongs to another optimizer now; compile the model again"
                )
        pairs = zip(tables, entries[::2], entries[1::2])
        sums = [table.steps.sum(ids, values) for table, ids, values in pairs]
        for table, w, each in zip(tables, weights, sums):
            table.steps.step(table.rows(w), each, float(alpha[0]))
        return [alpha.copy()]

    inputs = [tf.reshape(alpha, [1])]
    for gradient in gradients:
        inputs += gradient.indices, gradient.values
    weights = [table.variables[0] for table in tables]
    moments = [moment for table in tables for moment in table.variables[1:]]
    return on_host(run, inputs, weights, [tf.float32], also=moments)[0]


def catch_up(variable: Variable, ids: Tensor) -> None:
    """Make the steps that the rows of these ids, integer with any shape, have missed."""

    held = ref(variable)

    def run(ids: Array, w: Array) -> list[Array]:
        if (table := _behind(held())) is not None:
            table.steps.catch_up(table.rows(w), ids)
        return [ids[:0].copy()]

    _call(variable, run, [tf.reshape(ids, [-1])])


def flush(variable: Variable) -> None:
    """Make all steps that the rows of a table have missed; does nothing for other variables."""

    held = ref(variable)

    def run(_: Array, w: Array) -> list[Array]:
        if (table := _behind(held())) is not None:
            table.steps.flush(table.rows(w))
        return [np.zeros(0, np.int32)]

    _call(variable, run, [tf.zeros(0, tf.int32)])


def _behind(variable: Variable) -> Table | None:
    """Return the table of a variable if its rows may have missed a step."""
    table = variable.cowclip_table
    return table if table is not None and table.steps.missed else None


def _call(variable: Variable, run: Callable[..., list[Array]], inputs: list[Tensor]) -> None:
    """Call a function on the weights of a table, now or when the function that is traced runs."""
    if compat.in_export():  # a server has no Python to call
        with tf.init_scope():
            flush(variable)
    elif not tf.executing_eagerly() or _behind(variable):
        table = variable.cowclip_table
        weights = variable if table is None else table.variables[0]
        moment = [] if variable is weights else [variable]
        on_host(run, inputs, [weights], [inputs[0].dtype], also=moment)


def watch(variable: Variable) -> None:
    """Bring the rows of a variable up to date before any read, once it belongs to a table."""
    if not hasattr(variable, "cowclip_table"):
        variable.cowclip_table = None
        variable.__class__ = _caught_up(type(variable))


@cache
def _caught_up(kind: type) -> type:
    def sparse_read(self: Variable, indices: Tensor, name: str | None = None) -> Tensor:
        catch_up(self, indices)
        return kind.sparse_read(self, indices, name)

    def after_flush(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def flushed(self: Variable, *args: Any, **kwargs: Any) -> Any:
            with tf.init_scope():
                is_first_value = not self.is_initialized()
            if not (is_first_value and method.__name__ == "assign"):
                flush(self)
            return method(self, *args, **kwargs)

        return flushed

    names = ["_read_variable_op", "gather_nd", *(x for x in dir(kind) if x.startswith(_WRITES))]
    changed = {name: after_flush(getattr(kind, name)) for name in names}
    return type("CaughtUp", (kind,), {**changed, "sparse_read": sparse_read})
