"""Update rows on the CPU: the row kernels write into the memory of the variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.kernels import NonFiniteGradient, RowSettings
from cowclip_merlin.optimizer.clip_statistics import summarize
from cowclip_merlin.optimizer.replica import gather_ids
from cowclip_merlin.optimizer.row_updates.engine import (
    WATCHED,
    Engine,
    TableState,
    refuse_outside,
    warn_of_stale_rows,
)

tf = compat.tensorflow()


@dataclass(frozen=True, kw_only=True)
class CpuEngine(Engine):
    """Updates rows with the kernels of one implementation.

    Args:
        kernels: module of `cowclip_merlin.kernels`.
        call: the function `variable_memory.on_host`.
    """

    kernels: Any
    call: Callable[..., Any]

    def catch_up(self, tables: Sequence[Any], ids: Any) -> None:
        """Bring the rows of these ids, integer [n] with any duplicates, up to date."""
        settings = [self.settings_of(table) for table in tables]
        size = len(TableState._fields)

        def run(ids: Any, *arrays: Any) -> Any:
            if len(ids):  # refuse all ids before any row changes
                refuse_outside(tables, int(ids.min()), int(ids.max()))
            for i, numbers in enumerate(settings):
                self._replay(TableState(*arrays[i * size : (i + 1) * size]), numbers, ids)
            return [ids[:0].copy()]

        variables = [x for table in tables for x in self.state_of(table)]
        self.call(run, [gather_ids(ids)], variables, [ids.dtype])

    def _replay(self, state: TableState, settings: RowSettings, rows: Any) -> int:
        to = int(state.count[0])
        alphas = state.history[:to]
        return self.kernels.replay_rows(*state[:4], alphas, to, settings, rows=rows)

    def update(
        self, pairs: Sequence[tuple[Any, Any]], counted: Sequence[bool]
    ) -> tuple[list[Any], Any]:
        """Make one step of all tables; see `Engine.update`."""
        tables = [table for _, table in pairs]
        states = [self.state_of(table) for table in tables]
        settings = [self.settings_of(table) for table in tables]
        size = len(TableState._fields) if self.exact else 3

        def run(alpha: Any, *arrays: Any) -> Any:
            batches = arrays[: 2 * len(tables)]
            memory = [
                TableState(*arrays[i : i + size]) for i in range(len(batches), len(arrays), size)
            ]
            return self._run(tables, batches, memory, settings, float(alpha[0]))

        batches = [x for slices, _ in pairs for x in (slices.indices, slices.values)]
        variables = [x for state in states for x in state[:size]]
        inputs = [tf.reshape(self.alpha(), [1]), *batches]
        factors = self.call(run, inputs, variables, [tf.float32] * len(tables))
        with tf.control_dependencies(factors):
            self.adam.iterations.assign_add(1)
        for factor in factors:
            factor.set_shape([None])
        return list(factors), summarize([f for f, each in zip(factors, counted) if each])

    def _run(
        self,
        tables: Sequence[Any],
        batches: Sequence[Any],
        memory: Sequence[TableState],
        settings: Sequence[RowSettings],
        alpha: float,
    ) -> list[Any]:
        """Make the step on arrays; check that all gradients are finite before writing."""
        groups = self._groups(batches[::2], tables)
        sums = [self._sum(*each) for each in zip(tables, batches[1::2], groups)]
        factors = []
        for table, state, group, g, numbers in zip(tables, memory, groups, sums, settings):
            if self.exact:
                self._before_step(table, state, group.ids, numbers)
            factors.append(
                self.kernels.step_rows(*state[:3], group.ids, g, group.starts, alpha, numbers)
            )
            if self.exact:
                self._remember(state, group.ids, alpha)
        return factors

    def _groups(self, every: Sequence[Any], tables: Sequence[Any]) -> list[Any]:
        """Group the ids of every table; reuse the groups of a table with equal ids."""
        groups: list[Any] = []
        for i, (ids, table) in enumerate(zip(every, tables)):
            again = i > 0 and ids.shape == every[i - 1].shape and bool((ids == every[i - 1]).all())
            groups.append(groups[-1] if again else self.kernels.group_rows(ids))
            if len(ids):
                refuse_outside([table], int(groups[-1].ids[0]), int(groups[-1].ids[-1]))
        return groups

    def _sum(self, table: Any, values: Any, groups: Any) -> Any:
        try:
            return self.kernels.sum_rows(values, groups)
        except NonFiniteGradient as error:
            row = int(groups.ids[error.index])
            raise InputError(self.not_finite(table, row)) from error

    def _before_step(self, table: Any, state: TableState, rows: Any, settings: RowSettings) -> None:
        """Make room in the history; bring stale rows up to date, and warn of them."""
        if int(state.count[0]) >= len(state.history):
            self._bring_all(state, settings)
        behind = self._replay(state, settings, rows)
        if behind and int(state.count[0]) <= WATCHED:
            warn_of_stale_rows(table)

    def _remember(self, state: TableState, rows: Any, alpha: float) -> None:
        done = int(state.count[0])
        state.history[done] = np.float32(alpha)
        state.count[0] = done + 1
        self.kernels.mark_rows(state.last, rows, done + 1)

    def _bring_all(self, state: TableState, settings: RowSettings) -> None:
        self._replay(state, settings, None)
        state.last[...] = 0
        state.count[...] = 0

    def flush(self, table: Any, *, wait: bool = True) -> None:
        """Bring every row up to date and forget the history; see `Engine.flush`."""
        if not self.exact:
            return
        state, settings = self.state_of(table), self.settings_of(table)

        def run(*arrays: Any) -> Any:
            self._bring_all(TableState(*arrays), settings)
            return [arrays[-1].copy()]

        self.call(run, [], state, [tf.int64])
