"""State of the rows of each table: what the optimizer keeps, and the steps that they have seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.optimizer.config import Config, row_slots
from cowclip_merlin.optimizer.exchange.replica import add_replicated_weight, device_of, strategy_of
from cowclip_merlin.optimizer.row_updates import engine, variable_memory
from cowclip_merlin.optimizer.row_updates.engine import AdagradState, TableState
from cowclip_merlin.optimizer.row_updates.huge_pages import LEAST, hold_in_large_pages
from cowclip_merlin.types import DType, KerasOptimizer, Variable, VariableRef

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
