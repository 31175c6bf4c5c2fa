"""Update the rows of embedding tables with the engine of a backend, and keep their state."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import NoReturn

from cowclip_merlin import compat, kernels, workers
from cowclip_merlin.errors import InputError
from cowclip_merlin.kernels import RowSettings
from cowclip_merlin.optimizer import embedding_variables
from cowclip_merlin.optimizer.config import Config, is_plain_adagrad, row_slots
from cowclip_merlin.optimizer.embedding_tables import EmbeddingTables
from cowclip_merlin.optimizer.exchange import (
    add_replicated_weight,
    device_of,
    run_in_replicas,
    strategy_of,
)
from cowclip_merlin.optimizer.row_optimizers import moments_of
from cowclip_merlin.optimizer.row_updates import engine, gpu_ops, variable_memory
from cowclip_merlin.optimizer.row_updates.cpu_engine import AdagradEngine, CpuEngine
from cowclip_merlin.optimizer.row_updates.engine import AdagradState, Engine, TableState
from cowclip_merlin.optimizer.row_updates.gpu_engine import GpuEngine
from cowclip_merlin.optimizer.row_updates.tensorflow_engine import TensorFlowEngine
from cowclip_merlin.optimizer.row_updates.variable_memory import LEAST, hold_in_large_pages
from cowclip_merlin.optimizer.unique_rows import BatchRead, ReadForm, UniqueRows, flat_ids
from cowclip_merlin.optimizer.update import Summary
from cowclip_merlin.types import (
    DType,
    IndexedSlices,
    KerasOptimizer,
    Operation,
    Pair,
    Tensor,
    Variable,
    VariableRef,
)

tf = compat.tensorflow()


class RowStates:
    """Creates and finds the state of every table.

    Args:
        add_weight: method `add_weight` of the CowClip optimizer, whose checkpoints then contain
            the variables.
        optimizer: the embedding optimizer, an Adam or Adagrad.
        config: settings of the steps.
    """

    def __init__(
        self, add_weight: Callable[..., Variable], optimizer: KerasOptimizer, config: Config
    ) -> None:
        self._add_weight, self._optimizer, self._config = add_weight, optimizer, config
        # Whether each row counts its steps, so that an absent row can make them later.
        self.exact = config.update != "lazy"
        self._states: dict[VariableRef, TableState | AdagradState] = {}

    def __deepcopy__(self, memo: dict[int, object]) -> NoReturn:
        """Refuse to copy: a copy would contain copies of the tables and update only these.

        Raises:
            InputError: always; the message has the remedy.
        """
        raise InputError(
            "CowClip with rows that are updated one by one cannot be copied: create another with "
            "CowClip.from_config(optimizer.get_config())"
        )

    @property
    def tables(self) -> list[Variable]:
        """Tables that have state."""
        return [state.w for state in self._states.values()]

    def state_of(self, table: Variable) -> TableState | AdagradState:
        """Return the variables that `create` has made for a table."""
        return self._states[compat.stored(table).ref()]

    def has(self, table: Variable) -> bool:
        """Whether `create` has made variables for a table."""
        return compat.stored(table).ref() in self._states

    def create(self, tables: Sequence[Variable]) -> None:
        """Create the variables of these tables, once; the optimizer's slots must exist already.

        Raises:
            InputError: if a table is not float32, has a constraint, or is on a device that the
                backend does not support.
        """
        for table in (compat.stored(table) for table in tables if not self.has(table)):
            self._refuse(table)
            with tf.init_scope():
                state = self._states[table.ref()] = self._create(table)
                self._hold_in_large_pages(state)

    def _refuse(self, table: Variable) -> None:
        # The same algorithm in plain operations supports other types and constraints.
        other = "" if self._config.update == "lazy" else 'update="dense" with '
        if table.dtype.base_dtype != tf.float32:
            raise InputError(
                f"table {table.name!r} is {table.dtype.base_dtype.name}, but rows are updated one "
                f'by one in float32: make it float32, or use {other}backend="tensorflow"'
            )
        if getattr(table, "constraint", None) is not None:
            raise InputError(
                f"table {table.name!r} has a constraint, which updates of single rows "
                'ignore: remove it, or use update="dense" with backend="tensorflow"'
            )
        if self._config.backend != "tensorflow":
            variable_memory.refuse_elsewhere(table, self._config.backend)

    def _create(self, table: Variable) -> TableState | AdagradState:
        slots = [self._optimizer.get_slot(table, name) for name in row_slots(self._optimizer)]
        if len(slots) == 1:
            return AdagradState(table, *slots)
        if not self.exact:
            return TableState(table, *slots)
        # Names of tables depend on the layers made before in this process, and a checkpoint finds
        # variables by name. So use the table's number instead.
        name = f"table.{len(self._states)}"
        with device_of(table):
            last = self._weight(f"{name}.last", [table.shape[0]], tf.float32)
            history = self._weight(f"{name}.history", [engine.HISTORY], tf.float32)
            count = self._weight(f"{name}.count", [1], tf.int64)
        return TableState(table, *slots, last, history, count)

    def _weight(self, name: str, shape: list[int], dtype: DType) -> Variable:
        return add_replicated_weight(self._add_weight, name, shape, dtype, initializer="zeros")

    def _hold_in_large_pages(self, state: TableState | AdagradState) -> None:
        known = [x for x in state[:4] if x is not None]  # all are float32
        large = [x for x in known if 4 * x.shape.num_elements() >= LEAST]
        if large and self._config.backend == "numba" and strategy_of(state.w) is None:
            variable_memory.on_host(hold_in_large_pages, [], large, [])


class RowUpdate:
    """An `Update` of the rows of a batch; with "exact", also of the steps that rows have missed.

    Args:
        config: settings of the steps.
        tables: the embedding tables.
        optimizer: the embedding optimizer.
        add_weight: method `add_weight` of the CowClip optimizer.
        create_state: creates the complete state of tables; it also calls this class's method.
    """

    def __init__(
        self,
        *,
        config: Config,
        tables: EmbeddingTables,
        optimizer: KerasOptimizer,
        add_weight: Callable[..., Variable],
        create_state: Callable[[list[Variable]], None],
    ) -> None:
        self.config, self.tables, self.optimizer = config, tables, optimizer
        self._create_state = create_state
        self._states = RowStates(add_weight, self.optimizer, self.config)
        # Read them now: in the graph of a first step they are tensors without a value.
        adagrad = is_plain_adagrad(self.optimizer)
        self._moments = {} if adagrad else asdict(moments_of(self.optimizer))
        self._engine = self._make_engine()
        self._caught_up: set[VariableRef] = set()

    def apply(self, pairs: Sequence[Pair]) -> tuple[list[Tensor], Summary]:
        """Make one step of all tables; see `Update.apply`."""
        done = self._engine.update(pairs, self.tables.clips(pairs))
        if self.config.update == "dense":
            self._flush(wait=False)
        return done

    def apply_dense(self, optimizer: KerasOptimizer, pairs: Sequence[Pair]) -> Operation:
        """Make one step of the dense weights; see `Update.apply_dense`."""
        return self._engine.update_dense(optimizer, pairs)

    def sum_rows(self, slices: IndexedSlices) -> UniqueRows:
        """Sum the gradients of equal ids and count them, without a check.

        Each of several workers has its share of the micro-batches.
        """
        parts, group = self.config.micro_batches, workers.current()
        if parts == 1:
            return self._engine.sum_rows(slices)
        return self._engine.sum_rows(slices, max(1, round(parts / (group.size if group else 1))))

    def create_state(self, tables: Sequence[Variable]) -> None:
        """Create the state of these tables; the optimizer's slots must exist already."""
        self._states.create(tables)

    def catch_up(self, tables: Variable, ids: Tensor) -> None:
        """Bring the rows of these ids, of any shape, up to date in one or several tables."""
        tables = list(tables) if isinstance(tables, (list, tuple)) else [tables]
        embedding_variables.refuse_foreign(tables)
        self._create_missing(self.tables.registered, *([table] for table in tables))
        self._caught_up.update(compat.stored(table).ref() for table in tables)
        self._engine.catch_up(tables, flat_ids(ids))

    def read(
        self, tables: Sequence[Variable], ids: Tensor, numbers: Tensor, form: ReadForm
    ) -> BatchRead | None:
        """Read all that the layers need of a batch at once, or return None; see `Engine.read`."""
        if workers.current() is not None:
            return None
        self._create_missing(self.tables.registered, *([table] for table in tables))
        return self._engine.read(tables, ids, numbers, form)

    def refuse_never_caught_up(self, tables: Sequence[Variable]) -> None:
        """Refuse tables that a forward pass has read if `catch_up` was never called for them."""
        embedding_variables.refuse_never_caught_up(tables, self._caught_up)

    def flush(self, steps_made: Callable[[], int]) -> None:
        """Bring all rows of all tables up to date.

        A restored checkpoint may contain state of registered tables before this process makes
        its first step. So the state of these tables is created first.

        Args:
            steps_made: returns the optimizer's steps, including those before the checkpoint.
        """
        if self.config.update == "exact" and tf.executing_eagerly():
            waiting = [table for table in self.tables.registered if not self._states.has(table)]
            if (waiting or not self._states.tables) and steps_made():
                self._create_missing(waiting)
                self._warn_of_unknown_tables()
        self._flush(wait=True)

    def _create_missing(self, *groups: Sequence[Variable]) -> None:
        """Create missing table state, group by group."""
        with tf.init_scope():
            for group in groups:
                missing = [table for table in group if not self._states.has(table)]
                if missing:
                    self._create_state(missing)

    def _warn_of_unknown_tables(self) -> None:
        if not self._states.tables:
            warnings.warn(
                'update="exact": this optimizer has made steps and knows no table, as after a '
                "checkpoint was restored; call register_tables([table, ...]) before flush()",
                stacklevel=4,
            )

    def _flush(self, *, wait: bool) -> None:
        """Bring all rows up to date; with `wait`, raise the error of an earlier step now."""
        for table in self._states.tables:
            run_in_replicas(table, self._engine.flush, table, wait=wait)

    def _make_engine(self) -> Engine:
        common = {
            "optimizer": self.optimizer,
            "exact": self._states.exact,
            "state_of": self._states.state_of,
            "settings_of": self._settings_of,
            "describe": self.tables.describe,
        }
        backend = self.config.backend
        if backend == "tensorflow":
            return TensorFlowEngine(**common)
        if backend == "cupy":
            gpu_ops.require_cupy()
            operations, load_kernels = gpu_ops.operations(), gpu_ops.load_kernels
            owner = operations.new_owner()
            return GpuEngine(
                operations=operations, load_kernels=load_kernels, owner=owner, **common
            )
        kind = AdagradEngine if is_plain_adagrad(self.optimizer) else CpuEngine
        return kind(kernels=kernels.load(backend), call=variable_memory.on_host, **common)

    def _settings_of(self, table: Variable) -> RowSettings:
        config = self.config
        return RowSettings(
            l2=config.l2,
            clip="none" if self.tables.skips(table) else config.clip,
            clip_settings=config.clip_settings,
            micro_batches=config.micro_batches,
            epsilon=self.optimizer.epsilon,
            **self._moments,
        )
