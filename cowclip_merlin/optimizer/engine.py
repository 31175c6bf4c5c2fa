"""Steps of embedding tables row by row: gather the rows, run a kernel, scatter them back.

With `update="exact"` a row remembers the last step it has seen and is brought up to date
before it is read again; see `cowclip_merlin.kernels.reference.replay_rows`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cowclip_merlin import compat
from cowclip_merlin.kernels import RowSettings
from cowclip_merlin.optimizer.row_ops import Missed, Rows

tf = compat.tensorflow()

HISTORY = 1 << 16
"""Steps that are remembered; when it is full, all rows are brought up to date."""

_FLUSH_ROWS = 1 << 20


class TableState(NamedTuple):
    """Variables of one table.

    Attributes:
        table: weights [N, d].
        m: Adam's first moments [N, d].
        v: Adam's second moments [N, d].
        last: steps each row has seen since the last flush, float32 [N] (a type that every
            device can scatter; whole numbers up to HISTORY are exact in it).
        history: Adam's alpha of every step since then, float32 [HISTORY].
        count: number of these steps, int64.
    """

    table: Any
    m: Any
    v: Any
    last: Any
    history: Any
    count: Any


@dataclass(frozen=True)
class RowEngine:
    """Moves rows of embedding tables.

    Args:
        ops: `HostRows`, `DeviceRows` or `TensorFlowRows`.
        adam: the embedding optimizer, a legacy Keras Adam.
        exact: whether absent rows count the steps they miss.
        state_of: table -> its `TableState`.
        settings_of: table -> its `RowSettings`.
        name_of: table, row -> the row in words, for errors.
    """

    ops: Any
    adam: Any
    exact: bool
    state_of: Callable[[Any], TableState]
    settings_of: Callable[[Any], RowSettings]
    name_of: Callable[[Any, int], str]

    def catch_up(self, table: Any, ids: Any) -> None:
        """Bring the rows of these ids, integer [n] with any duplicates, up to date."""
        ids = _everywhere(ids)
        state, (rows_of, *_) = self.state_of(table), self.ops.group(ids)
        self._replay(table, state, rows_of)

    def _replay(self, table: Any, state: TableState, rows_of: Any) -> None:
        missed = self._missed(state)
        w, m, v = self.ops.replay(_gather(state, rows_of), missed, self.settings_of(table))
        _scatter(state, rows_of, (w, m, v), missed.to)

    def _missed(self, state: TableState) -> Missed:
        return Missed(tf.convert_to_tensor(state.history), tf.cast(state.count, tf.int32))

    def update(self, pairs: Sequence[tuple[Any, Any]]) -> list[Any]:
        """One step of all tables; the clip factors of the batch's rows, one tensor per table.

        Args:
            pairs: `tf.IndexedSlices`, one entry per occurrence, and table.
        """
        alpha = self._alpha()
        steps = [self._stepped(slices, table, alpha) for slices, table in pairs]
        # A gradient that is not finite stops the step before anything is written.
        with tf.control_dependencies([x for step in steps for x in step[2]]):
            for state, rows_of, moved, _, to in steps:
                _scatter(state, rows_of, moved, to + 1 if self.exact else None)
                if self.exact:
                    _set(state.history, tf.reshape(to, [1]), tf.reshape(alpha, [1]))
                    _assign(state.count, tf.cast(to + 1, tf.int64))
            self.adam.iterations.assign_add(1)
        return [factor for *_, factor, _ in steps]

    def _stepped(self, slices: Any, table: Any, alpha: Any) -> tuple[Any, ...]:
        state = self.state_of(table)
        if self.exact:
            tf.cond(
                self._missed(state).to >= state.history.shape[0],
                lambda: self.flush(table),
                lambda: None,
            )
        missed = self._missed(state) if self.exact else Missed(tf.zeros([0]), tf.constant(0))
        groups = self.ops.group(slices.indices)
        rows = _gather(state, groups[0])
        *moved, factor = self.ops.update(
            rows,
            missed,
            groups,
            slices.values,
            alpha,
            self.settings_of(table),
            lambda row: self.name_of(table, row),
        )
        return state, groups[0], moved, factor, missed.to

    def _alpha(self) -> Any:
        """Adam's learning rate with both bias corrections, as TensorFlow's kernel computes it."""
        adam = self.adam
        t = tf.cast(adam.iterations + 1, tf.float32)
        lr = adam._decayed_lr(tf.float32)
        beta_1, beta_2 = (adam._get_hyper(name, tf.float32) for name in ("beta_1", "beta_2"))
        return lr * tf.sqrt(1 - tf.pow(beta_2, t)) / (1 - tf.pow(beta_1, t))

    def flush(self, table: Any) -> None:
        """Bring every row up to date and forget the history."""
        state = self.state_of(table)
        size = tf.constant(table.shape[0], tf.int64)

        def body(start: Any) -> Any:
            rows_of = tf.range(start, tf.minimum(start + _FLUSH_ROWS, size))
            self._replay(table, state, rows_of)
            return (tf.minimum(start + _FLUSH_ROWS, size),)

        tf.while_loop(lambda start: start < size, body, [tf.constant(0, tf.int64)])
        _assign(state.last, tf.zeros(state.last.shape))
        _assign(state.count, tf.constant(0, tf.int64))


def _everywhere(ids: Any) -> Any:
    """The ids of all replicas: their tables must stay alike."""
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return ids
    return replica.all_gather(ids, axis=0)


def _gather(state: TableState, ids: Any) -> Rows:
    if state.last is None:
        last = tf.zeros_like(ids, tf.int32)
    else:
        last = tf.cast(tf.gather(state.last, ids), tf.int32)
    return Rows(*(tf.gather(x, ids) for x in (state.table, state.m, state.v)), last)


def _scatter(state: TableState, ids: Any, moved: Sequence[Any], last: Any | None) -> None:
    for variable, value in zip((state.table, state.m, state.v), moved):
        _set(variable, ids, value)
    if last is not None:
        _set(state.last, ids, tf.fill(tf.shape(ids), tf.cast(last, tf.float32)))


def _assign(variable: Any, value: Any) -> None:
    # Not variable.assign: that would ask the other replicas, which do the same on their own.
    tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)


def _set(variable: Any, ids: Any, values: Any) -> None:
    tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=ids, updates=values)


def warn_of_stale_rows(table: Any) -> None:
    """Say that a gradient may come from rows that had missed steps."""
    warnings.warn(
        f'update="exact": rows of {table.name!r} were not brought up to date before the forward '
        "pass read them; use the models of cowclip_merlin, or call catch_up(table, ids) first",
        stacklevel=4,
    )
