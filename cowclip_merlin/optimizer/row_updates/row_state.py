"""The engine of one optimizer: per-row state of its tables and what it knows of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cowclip_merlin import compat, kernels
from cowclip_merlin.errors import InputError
from cowclip_merlin.kernels import RowSettings
from cowclip_merlin.optimizer.embedding_variables import beside, strategy_of
from cowclip_merlin.optimizer.row_updates import engine, gpu_ops, variable_memory
from cowclip_merlin.optimizer.row_updates.engine import KernelEngine, TableState
from cowclip_merlin.optimizer.row_updates.gpu_engine import GpuEngine
from cowclip_merlin.optimizer.row_updates.huge_pages import LEAST, hold_in_large_pages
from cowclip_merlin.optimizer.row_updates.tensorflow_engine import TensorFlowEngine
from cowclip_merlin.optimizer.unique_rows import flat_ids

tf = compat.tensorflow()


class RowStates:
    """Creates and finds the state of every table.

    Args:
        owner: the CowClip optimizer, which gets the variables, so that checkpoints hold them.
        backend: "numba", "cupy" or "tensorflow".
        exact: whether absent rows count the steps they miss.
    """

    def __init__(self, owner: Any, backend: str, *, exact: bool) -> None:
        self._owner, self._backend, self._exact = owner, backend, exact
        # Now, while they are numbers: in the graph of a first step they have no value yet.
        self._betas = {k: owner.embedding_optimizer.get_config()[k] for k in ("beta_1", "beta_2")}
        self._states: dict[Any, TableState] = {}
        common = {
            "adam": owner.embedding_optimizer,
            "exact": exact,
            "state_of": self.state_of,
            "settings_of": self._settings_of,
            "name_of": self._name_of,
        }
        if backend == "tensorflow":
            self.engine: engine.Engine = TensorFlowEngine(**common)
        elif backend == "cupy":
            kernels.load("cupy")  # CuPy's compiler is found, or there is one clear line
            self.engine = GpuEngine(
                operations=gpu_ops.operations(), load_kernels=gpu_ops.load_kernels, **common
            )
        else:
            load = kernels.load(backend)
            self.engine = KernelEngine(kernels=load, call=variable_memory.on_host, **common)

    def __deepcopy__(self, memo: Any) -> Any:
        """Refused: a copy would have copies of the tables, too, and move those.

        Raises:
            InputError: always; the message has the remedy.
        """
        raise InputError(
            "CowClip with rows that are moved one by one cannot be copied: make another by "
            "CowClip.from_config(optimizer.get_config())"
        )

    @property
    def tables(self) -> list[Any]:
        """Tables that have a state."""
        return [state.w for state in self._states.values()]

    def catch_up(self, tables: Sequence[Any], ids: Any) -> None:
        """Bring the rows of these ids, of any shape, up to date in all of the tables."""
        self.engine.catch_up(tables, flat_ids(ids))

    def state_of(self, table: Any) -> TableState:
        """The table's variables, created when they are first asked for.

        Raises:
            InputError: the table is not float32, has a constraint, or is not where the kernels
                are.
        """
        table = compat.stored(table)
        if table.ref() not in self._states:
            with tf.init_scope():
                state = self._states[table.ref()] = self._create(table)
                self._hold_in_large_pages(state)
        return self._states[table.ref()]

    def _hold_in_large_pages(self, state: TableState) -> None:
        known = [x for x in state[:4] if x is not None]  # float32, a row or a number for each id
        large = [x for x in known if 4 * x.shape.num_elements() >= LEAST]
        if large and self._backend == "numba" and strategy_of(state.w) is None:
            variable_memory.on_host(hold_in_large_pages, [], large, [])

    def _create(self, table: Any) -> TableState:
        # The plain way of the same algorithm, which can do both.
        other = "" if self._owner._config.update == "lazy" else 'update="dense" with '
        if table.dtype.base_dtype != tf.float32:
            raise InputError(
                f"table {table.name!r} is {table.dtype.base_dtype.name}, but rows are moved one by "
                f'one in float32: make it float32, or use {other}backend="tensorflow"'
            )
        if getattr(table, "constraint", None) is not None:
            raise InputError(
                f"table {table.name!r} has a constraint, which rows that are moved one by one do "
                'not keep: remove it, or use update="dense" with backend="tensorflow"'
            )
        if self._backend != "tensorflow":
            variable_memory.refuse_elsewhere(table, self._backend)
        self._owner._create_own_weights()
        adam = self._owner.embedding_optimizer
        adam._create_all_weights([table])
        m, v = adam.get_slot(table, "m"), adam.get_slot(table, "v")
        if not self._exact:
            return TableState(table, m, v)
        # Not the table's name: Keras counts layers per process, and a checkpoint is found by name.
        name = f"table.{len(self._states)}"
        with beside(table):
            last = self._weight(f"{name}.last", [table.shape[0]], tf.float32)
            history = self._weight(f"{name}.history", [engine.HISTORY], tf.float32)
        # The host needs the count before it launches a step, and must not ask a GPU for it.
        with beside(table, cpu=self._backend == "cupy"):
            count = self._weight(f"{name}.count", [1], tf.int64)
        return TableState(table, m, v, last, history, count)

    def _weight(self, name: str, shape: list[int], dtype: Any) -> Any:
        return self._owner.add_weight(
            name,
            shape,
            dtype=dtype,
            initializer="zeros",
            trainable=False,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )

    def _settings_of(self, table: Any) -> RowSettings:
        config = self._owner._config
        return RowSettings(
            l2=config.l2,
            clip="none" if self._owner._skips(table) else config.clip,
            clip_settings=config.clip_settings,
            epsilon=self._owner.embedding_optimizer.epsilon,
            **self._betas,
        )

    def _name_of(self, table: Any, row: int) -> str:
        """A row in words: its field and its id there, if the table's fields are known."""
        fields, id_ = self._owner._config.fields or {}, row
        where = f"row {row} of table {table.name!r}"
        if sum(fields.values()) == table.shape[0]:
            for field, size in fields.items():
                if id_ < size:
                    where = f"id {id_} of field {field!r}"
                    break
                id_ -= size
        return f"the gradient of {where} is not finite"
