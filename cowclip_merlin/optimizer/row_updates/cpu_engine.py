"""Update rows on the CPU: the row kernels write into the memory of the variables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cowclip_merlin import compat
from cowclip_merlin.choices import RowSettings
from cowclip_merlin.errors import InputError
from cowclip_merlin.kernels import NonFiniteGradient
from cowclip_merlin.optimizer.exchange import gather_ids
from cowclip_merlin.optimizer.row_updates.engine import (
    WATCHED,
    AdagradState,
    RowEngine,
    Summary,
    TableState,
    refuse_outside,
    summarize,
    warn_of_stale_rows,
)
from cowclip_merlin.optimizer.unique_rows import UniqueRows, counts_of, squares_of
from cowclip_merlin.tables.variable_memory import on_host
from cowclip_merlin.types import Array, ArrayOrTensor, IndexedSlices, Pair, Tensor, Variable

if TYPE_CHECKING:
    from cowclip_merlin.kernels.interface import Groups

tf = compat.tensorflow()


class Entries(NamedTuple):
    """The gradient of one table: tensors or arrays of `tf.IndexedSlices` or `CountedSlices`.

    Attributes:
        ids: integer [n].
        values: [n, d].
        counts: occurrences that each entry stands for, int32 [n]; None: one.
        squares: sums over micro-batches of their squared gradients, [n, d], or None.
    """

    ids: ArrayOrTensor
    values: ArrayOrTensor
    counts: ArrayOrTensor | None = None
    squares: ArrayOrTensor | None = None


@dataclass(frozen=True, kw_only=True)
class CpuEngine(RowEngine):
    """Updates rows with the kernels of one implementation.

    Args:
        kernels: module of `cowclip_merlin.kernels`.
    """

    kernels: ModuleType

    def catch_up(self, tables: Sequence[Variable], ids: Tensor) -> None:
        """Bring the rows of these ids, integer [n] with any duplicates, up to date."""
        settings = [self.settings_of(table) for table in tables]
        size = len(TableState._fields)

        def run(ids: Array, *arrays: Array) -> list[Array]:
            if len(ids):  # refuse all ids before any row changes
                refuse_outside(tables, int(ids.min()), int(ids.max()))
            for i, numbers in enumerate(settings):
                self._replay(TableState(*arrays[i * size : (i + 1) * size]), numbers, ids)
            return [ids[:0].copy()]

        variables = [x for table in tables for x in self.tables.of(table).state]
        on_host(run, [gather_ids(ids)], variables, [ids.dtype])

    def _replay(self, state: TableState, settings: RowSettings, rows: Array | None) -> int:
        to = int(state.count[0])
        alphas = state.history[:to]
        return self.kernels.replay_rows(*state[:4], alphas, to, settings, rows=rows)

    def step(self, pairs: Sequence[Pair]) -> tuple[list[Tensor], Summary]:
        """Make one step of all tables; see `Engine.step`."""
        tables = [table for _, table in pairs]
        states = [self.tables.of(table).state for table in tables]
        settings, parts = [self.settings_of(table) for table in tables], self.config.micro_batches
        batches = [
            Entries(s.indices, s.values, counts_of(s), squares_of(s, parts)) for s, _ in pairs
        ]
        # With several workers all tables have counts, else none.
        names = [name for name, x in batches[0]._asdict().items() if x is not None]

        def run(alpha: Array, *arrays: Array) -> list[Array]:
            end, width = len(tables) * len(names), len(names)
            batches = [
                Entries(**dict(zip(names, arrays[i : i + width]))) for i in range(0, end, width)
            ]
            memory = [kind(*arrays[i : i + size]) for i in range(end, len(arrays), size)]
            return self._run(tables, batches, memory, settings, float(alpha[0]))

        kind, held = type(states[0]), [[x for x in each if x is not None] for each in states]
        size, variables = len(held[0]), [x for each in held for x in each]
        tensors = [getattr(each, name) for each in batches for name in names]
        inputs = [tf.reshape(self.alpha(), [1]), *tensors]
        factors = on_host(run, inputs, variables, [tf.float32] * len(tables))
        with tf.control_dependencies(factors):
            self.optimizer.iterations.assign_add(1)
        for factor in factors:
            factor.set_shape([None])
        return list(factors), summarize(factors, [each is self.config for each in settings])

    def _run(
        self,
        tables: Sequence[Variable],
        batches: Sequence[Entries],
        memory: Sequence[TableState],
        settings: Sequence[RowSettings],
        alpha: float,
    ) -> list[Array]:
        """Make the step on arrays; check that all gradients are finite before writing."""
        groups = self._groups([each.ids for each in batches], tables)
        every_sum = [
            self._sum(t, each.values, group) for t, each, group in zip(tables, batches, groups)
        ]
        factors = []
        each_table = zip(tables, memory, groups, batches, every_sum, settings)
        for table, state, group, batch, g, numbers in each_table:
            known = batch.counts
            if self.exact:
                if int(state.count[0]) >= len(state.history):
                    self._bring_all(state, numbers)
                behind, done = self._replay(state, numbers, group.ids), int(state.count[0])
                # With several workers, rows that only others have read may be stale.
                if behind and known is None and done <= WATCHED:
                    warn_of_stale_rows(table)
            starts = group.starts if known is None else _starts_of_counts(known, group)
            squares = self._squares(batch, group, numbers.micro_batches)
            factors.append(self._step(state, group.ids, g, starts, alpha, numbers, squares))
            if self.exact:
                state.history[done] = np.float32(alpha)
                state.count[0] = done + 1
                self.kernels.mark_rows(state.last, group.ids, done + 1)
        return factors

    def _step(self, state: TableState, *sums: Any) -> Array:
        """Make the step of one table with its sums; return the clip factors."""
        return self.kernels.step_rows(*state[:3], *sums)

    def _groups(self, every: Sequence[Array], tables: Sequence[Variable]) -> list[Groups]:
        """Group the ids of every table; reuse the groups of a table with equal ids."""
        groups: list[Groups] = []
        for i, (ids, table) in enumerate(zip(every, tables)):
            again = i > 0 and ids.shape == every[i - 1].shape and bool((ids == every[i - 1]).all())
            groups.append(groups[-1] if again else self.kernels.group_rows(ids))
            if len(ids):
                refuse_outside([table], int(groups[-1].ids[0]), int(groups[-1].ids[-1]))
        return groups

    def _squares(self, batch: Entries, group: Groups, micro_batches: int) -> Array | None:
        """Return the squares of a table's rows, [u, d]; None for one micro-batch."""
        if micro_batches == 1:
            return None
        if batch.squares is not None:
            return self.kernels.sum_rows(batch.squares, group)
        return self.kernels.square_rows(batch.values, group, micro_batches)

    def _sum(self, table: Variable, values: Array, groups: Groups) -> Array:
        try:
            return self.kernels.sum_rows(values, groups)
        except NonFiniteGradient as error:
            row = int(groups.ids[error.index])
            raise InputError(self.not_finite(table, row)) from error

    def _bring_all(self, state: TableState, settings: RowSettings) -> None:
        self._replay(state, settings, None)
        state.last[...] = 0
        state.count[...] = 0

    def sum_rows(self, slices: IndexedSlices, micro_batches: int | None = None) -> UniqueRows:
        """Sum the gradients of equal ids and count them; see `Engine.sum_rows`."""

        def run(ids: Array, values: Array) -> list[Array]:
            rows = self.kernels.unique_rows(ids, values, micro_batches)
            found = rows._replace(cnt=rows.cnt.astype(np.int32))
            return [x for x in found if x is not None]

        types = [slices.indices.dtype, tf.int32, tf.float32, tf.float32]
        types = types[: 3 if micro_batches is None else 4]
        found = on_host(run, [slices.indices, slices.values], [], types)
        matrix = [None, slices.values.shape[1]]
        for tensor, shape in zip(found, ([None], [None], matrix, matrix)):
            tensor.set_shape(shape)
        return UniqueRows(*found)

    def flush_table(self, table: Variable, *, wait: bool = True) -> None:
        """Bring every row up to date and forget the history; see `RowEngine.flush_table`."""
        if not self.exact:
            return
        state, settings = self.tables.of(table).state, self.settings_of(table)

        def run(*arrays: Array) -> list[Array]:
            self._bring_all(TableState(*arrays), settings)
            return [arrays[-1].copy()]

        on_host(run, [], state, [tf.int64])


def _starts_of_counts(counts: Array, groups: Groups) -> Array:
    """Return starts [u + 1] whose differences are the summed counts of each group."""
    starts = np.zeros_like(groups.starts)
    if len(groups.ids):
        np.cumsum(np.add.reduceat(counts[groups.order], groups.starts[:-1]), out=starts[1:])
    return starts


@dataclass(frozen=True, kw_only=True)
class AdagradEngine(CpuEngine):
    """Updates the rows of a batch; only for `update="lazy"`, so no row misses a step."""

    def alpha(self) -> Tensor:
        """Return this step's learning rate."""
        return self.optimizer._decayed_lr(tf.float32)

    def _step(self, state: AdagradState, *sums: Any) -> Array:  # type: ignore[override]
        *of_rows, _ = sums  # without squares of micro-batches
        return self.kernels.adagrad_rows(*state, *of_rows)
