"""Update rows and dense weights on a GPU by operations on TensorFlow's own stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.optimizer.config import is_plain_adagrad
from cowclip_merlin.optimizer.exchange import (
    assign_locally,
    device_of,
    gather_ids,
    replicated_variable,
    strategy_of,
)
from cowclip_merlin.optimizer.row_optimizers import RowWiseAdagrad
from cowclip_merlin.optimizer.row_updates import gpu_ops
from cowclip_merlin.optimizer.row_updates.engine import (
    RowEngine,
    Summary,
    outside_words,
    warn_of_stale_rows,
)
from cowclip_merlin.optimizer.unique_rows import BatchRead, BatchSlices, ReadForm
from cowclip_merlin.types import DType, KerasOptimizer, Operation, Pair, Tensor, Variable

tf = compat.tensorflow()


def fits(optimizer: KerasOptimizer, pairs: Sequence[Pair], table: Variable) -> bool:
    """Whether the kernel makes the same step as this optimizer, without replicas.

    Args:
        optimizer: the dense optimizer.
        pairs: gradient and variable.
        table: a table, on whose device the weights must be.
    """
    plain = type(optimizer) is tf.keras.optimizers.legacy.Adam and not (
        optimizer.amsgrad
        or optimizer.gradient_transformers
        or any(getattr(optimizer, x) for x in ("clipnorm", "clipvalue", "global_clipnorm"))
    )
    return plain and strategy_of(table) is None and all(_fits(*pair, table) for pair in pairs)


def _fits(gradient: Tensor, variable: Variable, table: Variable) -> bool:
    return (
        isinstance(gradient, tf.Tensor)
        and gradient.dtype == compat.stored(variable).dtype.base_dtype == tf.float32
        and strategy_of(variable) is None
        and getattr(variable, "constraint", None) is None
        and variable.device == table.device
    )


def make(
    optimizer: KerasOptimizer,
    pairs: Sequence[Pair],
    *,
    operations: gpu_ops.Operations,
    number: int,
    status: Variable,
) -> Operation:
    """Make the step, unless the tables have refused it; the counter of the optimizer goes on.

    Args:
        optimizer: a legacy Adam, for which `fits` holds.
        pairs: gradient float32 and variable.
        operations: the loaded operations.
        number: of a table of the same step in the operations.
        status: reports refused steps.
    """
    slots = [[v, *(optimizer.get_slot(v, name) for name in ("m", "v"))] for _, v in pairs]
    handles = [x.handle for each in slots for x in each]
    beta_1, beta_2 = (optimizer._get_hyper(x, tf.float32) for x in ("beta_1", "beta_2"))
    made = operations.module.cow_clip_dense(
        rate=optimizer._decayed_lr(tf.float32),
        iterations=optimizer.iterations.read_value(),
        beta_1=beta_1,
        beta_2=beta_2,
        counts=[],
        gradients=[gradient for gradient, _ in pairs],
        variables=[*handles, status.handle],
        tables=[number],
        wait=False,  # the step of the tables has waited, if the host waits at all
        epsilon=optimizer.epsilon,
    )
    with tf.control_dependencies([] if made is None else [made]):
        return optimizer.iterations.assign_add(1, read_value=False)


MOST_TABLES = 1024
"""Maximum number of tables of one optimizer, for which `status` has room."""

_STATUS_SIZE = 1 + 3 * MOST_TABLES


@dataclass(frozen=True, kw_only=True)
class GpuEngine(RowEngine):
    """Updates rows with the operations of `gpu_ops`.

    A step is refused if a gradient is not finite or an id is outside its table. In a graph, the
    host does not wait for the step, so a later step or `flush` raises the error. Then the tables
    and their moments are as before the refused step, and so are the dense weights if `dense_step`
    updates them. But the counters of all optimizers include it, and another dense optimizer has
    made its step. In eager mode, the refused step itself raises the error, before the dense
    optimizer's step.

    Args:
        operations: the loaded operations.
        load_kernels: maps a GPU's index, the length of a row, and whether gradients are bfloat16
            to `gpu_ops.Loaded`.
        owner: number that identifies this engine in the operations, equal in all replicas.
    """

    operations: gpu_ops.Operations
    load_kernels: Callable[[int, int, bool], gpu_ops.Loaded]
    owner: int
    _known: dict[Any, Any] = field(default_factory=dict)  # status, slots and numbers

    reads_batches: ClassVar[bool] = True

    def catch_up(self, tables: Sequence[Variable], ids: Tensor) -> None:
        """Bring the rows of these ids, integer [n] with any duplicates, up to date."""
        self.operations.module.cow_clip_catch_up(
            ids=gather_ids(ids),
            counts=self._counts(tables),
            variables=self._variables(tables),
            tables=[self._number(table) for table in tables],
            wait=tf.executing_eagerly(),
        )

    def step(self, pairs: Sequence[Pair]) -> tuple[list[Tensor], Summary]:
        """Make one step of all tables; see `Engine.step`."""
        tables = [table for _, table in pairs]
        counted = [not self.tables.skips(table) for table in tables]
        if isinstance(pairs[0][0], BatchSlices):
            return self._update_read(pairs[0][0], tables, counted)
        values = _alike([s.values for s, _ in pairs], (tf.float32, tf.bfloat16))
        indices = _alike([s.indices for s, _ in pairs], (tf.int64, tf.int32))
        how = self._step_arguments(tables, counted, values[0].dtype)
        made = self.operations.module.cow_clip_step(indices=indices, values=values, **how)
        return self._note_step(tables, how["tables"], made, any(counted))

    def read(
        self, tables: Sequence[Variable], ids: Tensor, numbers: Tensor, form: ReadForm
    ) -> BatchRead | None:
        """Read a batch at once; see `Engine.read`."""
        if strategy_of(tables[0]) is not None:
            return None
        bfloat16 = form.dtype == tf.bfloat16
        found = self.operations.module.cow_clip_read(
            ids=ids,
            offsets=tf.constant(form.offsets, tf.int64),
            numbers=numbers,
            counts=self._counts(tables),
            variables=self._variables(tables),
            tables=[self._number(table, bfloat16=bfloat16) for table in tables],
            wait=tf.executing_eagerly(),
            width=form.width,
            pairs=form.pairs,
            T=form.dtype,
            R=len(tables) if self.exact else 0,
        )
        columns = form.width, len(tables) - 1, int(form.pairs), form.pairs * tables[0].shape[1]
        for tensor, count in zip(found, columns):
            tensor.set_shape([ids.shape[0], count])
        return BatchRead(*found, ids=ids, tables=list(tables))

    def _update_read(
        self, slices: BatchSlices, tables: Sequence[Variable], counted: Sequence[bool]
    ) -> tuple[list[Tensor], Summary]:
        if [x.ref() for x in tables] != [x.ref() for x in slices.read.tables]:
            raise InputError(
                "a batch that was read at once is stepped at once: give apply_gradients all of its "
                "`pairs`, in their order"
            )
        flat, first, second = slices.gradients
        how, read = self._step_arguments(tables, counted, flat.dtype), slices.read
        made = self.operations.module.cow_clip_read_step(
            groups=read.groups,
            rows=read.rows,
            flat=flat,
            first=first,
            second=second,
            sums=read.sums,
            fields=read.ids.shape[1],
            **how,
        )
        return self._note_step(tables, how["tables"], made, any(counted))

    def _step_arguments(
        self, tables: Sequence[Variable], counted: Sequence[bool], dtype: DType
    ) -> dict[str, Any]:
        half = dtype == tf.bfloat16
        numbers = [self._number(t, counted=each, bfloat16=half) for t, each in zip(tables, counted)]
        return {
            "rate": self.optimizer._decayed_lr(tf.float32),
            "iterations": self.optimizer.iterations.read_value(),
            "counts": self._counts(tables),
            "variables": self._variables(tables),
            "tables": numbers,
            "wait": tf.executing_eagerly(),
        }

    def _note_step(
        self, tables: Sequence[Variable], numbers: list[int], made: Any, counted: bool
    ) -> tuple[list[Tensor], Summary]:
        """Count the step; returns what `step` returns."""
        share, mean, done = made
        self._known["any"] = tables[0], numbers[0]
        for table, count in zip(tables, done):
            assign_locally(self.tables.of(table).state.count, count)
        with tf.control_dependencies([share]):
            self.optimizer.iterations.assign_add(1)
        share.set_shape([])
        mean.set_shape([])
        return [share], (share, mean) if counted else None

    def step_dense(self, optimizer: KerasOptimizer, pairs: Sequence[Pair]) -> Operation:
        """Make one step of the dense weights; see `Engine.step_dense`."""
        table, number = self._known.get("any", (None, 0))
        if table is None or not fits(optimizer, pairs, table):
            return super().step_dense(optimizer, pairs)
        status, operations = self._status(table), self.operations
        return make(optimizer, pairs, operations=operations, number=number, status=status)

    def flush_table(self, table: Variable, *, wait: bool = True) -> None:
        """Bring every row up to date and forget the history.

        Args:
            table: a table of this optimizer.
            wait: let the host wait, and raise the error of an earlier step.
        """
        self.operations.module.cow_clip_flush(
            counts=self._counts([table]),
            variables=self._variables([table]),
            tables=[self._number(table)],
            wait=wait,
        )
        if self.exact:
            assign_locally(self.tables.of(table).state.count, tf.zeros([1], tf.int64))

    def _counts(self, tables: Sequence[Variable]) -> list[Tensor]:
        return [self.tables.of(t).state.count.read_value() for t in tables] if self.exact else []

    def _variables(self, tables: Sequence[Variable]) -> list[Tensor]:
        size = 5 if self.exact else 3
        state = [x.handle for table in tables for x in self.tables.of(table).state[:size]]
        return [*state, self._status(tables[0]).handle]

    def _status(self, table: Variable) -> Variable:
        """Return the variable that reports refused steps; see `refuse` in group.cuh."""
        if "status" not in self._known:
            nothing = np.full(_STATUS_SIZE, np.iinfo(np.int64).max)
            nothing[::3] = 0
            with tf.init_scope(), device_of(table):
                self._known["status"] = replicated_variable(nothing, "cowclip_status")
        return self._known["status"]

    def _number(self, table: Variable, *, counted: bool = False, bfloat16: bool = False) -> int:
        """Return the number that identifies a table, or a replica's copy, in the operations."""
        table = compat.stored(table)
        device = tf.DeviceSpec.from_string(table.device).device_index or 0
        key = (table.ref(), device, counted, bfloat16)  # kernels are loaded for one GPU
        if key not in self._known:
            self._known[key] = self._register(table, device, counted, bfloat16)
        return self._known[key]

    def _register(self, table: Variable, device: int, counted: bool, bfloat16: bool) -> int:
        slots = self._known.setdefault("slots", {})
        slot = slots.setdefault(table.ref(), len(slots))
        if slot >= MOST_TABLES:
            raise InputError(
                f"one optimizer has {len(slots)} tables, but on a GPU it can have at most "
                f'{MOST_TABLES}: use tables="fused", or backend="tensorflow"'
            )
        rows, d = table.shape
        if rows > 1 << 31:
            raise InputError(
                f'table {table.name!r} has {rows} rows, more than 2^31: use backend="tensorflow"'
            )
        settings, optimizer = self.settings_of(table), self.optimizer
        adagrad, row_wise = is_plain_adagrad(optimizer), isinstance(optimizer, RowWiseAdagrad)
        # Adam's absent rows count their steps; Adagrad's stay without L2.
        whole = adagrad and self.config.update == "dense" and settings.l2 > 0
        record = gpu_ops.record_of(
            rows, d, settings, self.load_kernels(device, d, bfloat16), exact=self.exact,
            counted=counted, owner=self.owner, slot=slot,
            width=(1 if row_wise else d) if adagrad else 0, whole=whole,
        )  # fmt: skip

        def describe(row: int, what: int) -> str:
            if what == 2:
                warn_of_stale_rows(table)
                return ""
            return self.not_finite(table, row) if what == 0 else outside_words(table, row)

        return self.operations.add_table(record, describe)


def _alike(tensors: list[Tensor], types: tuple[DType, ...]) -> list[Tensor]:
    """Cast the tensors to one type: the one that all have if it is in `types`, else the first."""
    found = {x.dtype for x in tensors}
    chosen = next((x for x in types if found == {x}), types[0])
    return [x if x.dtype == chosen else tf.cast(x, chosen) for x in tensors]
