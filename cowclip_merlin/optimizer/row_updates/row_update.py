"""One step of the embedding tables, row by row, by one of the engines."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from cowclip_merlin import compat, kernels
from cowclip_merlin.kernels import RowSettings
from cowclip_merlin.optimizer import embedding_variables
from cowclip_merlin.optimizer.config import Config
from cowclip_merlin.optimizer.replica import run_in_replicas
from cowclip_merlin.optimizer.row_updates import gpu_ops, variable_memory
from cowclip_merlin.optimizer.row_updates.cpu_engine import CpuEngine
from cowclip_merlin.optimizer.row_updates.engine import Engine
from cowclip_merlin.optimizer.row_updates.gpu_engine import GpuEngine
from cowclip_merlin.optimizer.row_updates.row_state import RowStates
from cowclip_merlin.optimizer.row_updates.tensorflow_engine import TensorFlowEngine
from cowclip_merlin.optimizer.table_update import Summary, TableUpdate
from cowclip_merlin.optimizer.unique_rows import flat_ids

tf = compat.tensorflow()


class RowUpdate(TableUpdate):
    """Updates rows of the batch, and with "exact" those that have missed steps.

    Args:
        add_weight: of the CowClip optimizer.
        create_state: creates all state of tables, by calling this `create_state`, too.
        **parts: of `TableUpdate`.
    """

    def __init__(
        self,
        *,
        add_weight: Callable[..., Any],
        create_state: Callable[[list[Any]], None],
        **parts: Any,
    ) -> None:
        super().__init__(**parts)
        self._create_state = create_state
        self._states = RowStates(add_weight, self.optimizer, self.config)
        # Now, while they are numbers: in the graph of a first step they have no value yet.
        config = self.optimizer.get_config()
        self._betas = {name: config[name] for name in ("beta_1", "beta_2")}
        self._engine = self._make_engine()
        self._caught_up: set[Any] = set()

    def apply(self, pairs: Sequence[tuple[Any, Any]]) -> tuple[list[Any], Summary]:
        """One step of all tables; see `TableUpdate.apply`."""
        done = self._engine.update(pairs, self.clips(pairs))
        if self.config.update == "dense":
            self._flush(wait=False)
        return done

    def create_state(self, tables: Sequence[Any]) -> None:
        """Create the state of these tables; Adam's slots must exist already."""
        self._states.create(tables)

    def catch_up(self, tables: Any, ids: Any) -> None:
        """Bring the rows of these ids, of any shape, up to date in a table or several."""
        if self.config.update == "exact":
            tables = list(tables) if isinstance(tables, (list, tuple)) else [tables]
            embedding_variables.refuse_foreign(tables)
            self._create_missing(self.tables.registered, *([table] for table in tables))
            self._caught_up.update(compat.stored(table).ref() for table in tables)
            self._engine.catch_up(tables, flat_ids(ids))

    def refuse_never_caught_up(self, tables: Sequence[Any]) -> None:
        """Refuse tables that a forward pass has read, and `catch_up` was never called for."""
        if self.config.update == "exact":
            embedding_variables.refuse_never_caught_up(tables, self._caught_up)

    def flush(self, steps_made: Callable[[], int]) -> None:
        """Bring all rows of all tables up to date.

        Tables that were registered have state in a checkpoint that was restored before, though
        no step was made in this process.

        Args:
            steps_made: of the optimizer, those before the checkpoint included.
        """
        if self.config.update == "exact" and tf.executing_eagerly():
            waiting = [table for table in self.tables.registered if not self._states.has(table)]
            if (waiting or not self._states.tables) and steps_made():
                self._create_missing(waiting)
                self._warn_of_unknown_tables()
        self._flush(wait=True)

    def _create_missing(self, *groups: Sequence[Any]) -> None:
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
        """As `flush`; with `wait` the error of an earlier step is raised now."""
        for table in self._states.tables:
            run_in_replicas(table, self._engine.flush, table, wait=wait)

    def _make_engine(self) -> Engine:
        common = {
            "adam": self.optimizer,
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
        return CpuEngine(kernels=kernels.load(backend), call=variable_memory.on_host, **common)

    def _settings_of(self, table: Any) -> RowSettings:
        config = self.config
        return RowSettings(
            l2=config.l2,
            clip="none" if self.tables.skips(table) else config.clip,
            clip_settings=config.clip_settings,
            epsilon=self.optimizer.epsilon,
            **self._betas,
        )


def make_update(
    *,
    config: Config,
    add_weight: Callable[..., Any],
    create_state: Callable[[list[Any]], None],
    **parts: Any,
) -> TableUpdate:
    """The way to update tables that a configuration asks for; arguments as of `RowUpdate`."""
    if config.update == "exact" or config.backend != "tensorflow":
        return RowUpdate(config=config, add_weight=add_weight, create_state=create_state, **parts)
    return TableUpdate(config=config, **parts)
