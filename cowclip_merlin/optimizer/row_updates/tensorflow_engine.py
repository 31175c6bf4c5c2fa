"""The engine in plain TensorFlow operations, for any device; tests compare kernels with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from cowclip_merlin import clip as clips
from cowclip_merlin import compat
from cowclip_merlin.choices import RowSettings
from cowclip_merlin.errors import InputError
from cowclip_merlin.optimizer.exchange import assign_locally, assign_rows_locally, gather_ids
from cowclip_merlin.optimizer.row_updates.engine import (
    WATCHED,
    RowEngine,
    Summary,
    TableState,
    summarize,
    warn_of_stale_rows,
)
from cowclip_merlin.optimizer.unique_rows import counts_of, sum_duplicates
from cowclip_merlin.tables.variable_memory import call_in_graph
from cowclip_merlin.types import Array, IndexedSlices, Pair, Tensor, Variable

if TYPE_CHECKING:
    from cowclip_merlin.kernels.interface import UniqueRows

tf = compat.tensorflow()


@dataclass(frozen=True, kw_only=True)
class TensorFlowEngine(RowEngine):
    """Gathers rows, updates them, and scatters them back; only for `update="exact"`."""

    def catch_up(self, tables: Sequence[Variable], ids: Tensor) -> None:
        """Bring the rows of these ids, integer [n] with any duplicates, up to date."""
        ids, _ = tf.unique(gather_ids(ids))
        for table in tables:
            self._replay(self.tables.of(table).state, self.settings_of(table), ids)

    def _replay(self, state: TableState, settings: RowSettings, ids: Tensor) -> None:
        """Replay missed steps, with one pass over all rows for each step."""
        to = tf.cast(state.count[0], tf.int32)
        last = tf.cast(tf.gather(state.last, ids), tf.int32)
        history = tf.convert_to_tensor(state.history)

        def body(step: Tensor, w: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
            g = _absent_gradient(w, settings)
            squares = g * g / settings.micro_batches  # each part has its share of L2
            updated = _adam(w, m, v, g, history[step], settings, squares)
            due = ((last <= step) & (history[step] >= 0))[:, tf.newaxis]
            return step + 1, *(tf.where(due, a, b) for a, b in zip(updated, (w, m, v)))

        # Without rows, replay no step.
        first = tf.reduce_min(tf.concat([last, [to]], 0))
        before = [tf.gather(x, ids) for x in state[:3]]
        _, *after = tf.while_loop(lambda step, *_: step < to, body, [first, *before])
        _scatter(state, ids, after, to)

    def step(self, pairs: Sequence[Pair]) -> tuple[list[Tensor], Summary]:
        """Make one step of all tables; see `Engine.step`."""
        alpha = self.alpha()
        sums = [self._sums(slices, table) for slices, table in pairs]
        # A gradient that is not finite must stop the step before any variable changes.
        with tf.control_dependencies([rows.g for rows in sums]):
            factors = [
                self._step(rows, table, alpha, watch=counts_of(slices) is None)
                for rows, (slices, table) in zip(sums, pairs)
            ]
        with tf.control_dependencies(factors):
            self.optimizer.iterations.assign_add(1)
        return factors, summarize(factors, [not self.tables.skips(table) for _, table in pairs])

    def _sums(self, slices: IndexedSlices, table: Variable) -> UniqueRows:
        """Return distinct ids, counts and sums; raise an error for a sum that is not finite."""
        parts = self.config.micro_batches
        rows = sum_duplicates(slices, parts if parts > 1 else None)
        bad = ~tf.reduce_all(tf.math.is_finite(rows.g), axis=1)

        def report(first: Array) -> NoReturn:
            raise InputError(self.not_finite(table, int(first)))

        def complain() -> Tensor:
            return call_in_graph(report, [tf.boolean_mask(rows.ids, bad)[0]], tf.bool)

        fine = tf.cond(tf.reduce_any(bad), complain, lambda: tf.constant(True))
        with tf.control_dependencies([fine]):
            return rows._replace(g=tf.identity(rows.g))

    def _step(self, rows: UniqueRows, table: Variable, alpha: Tensor, *, watch: bool) -> Tensor:
        state, settings = self.tables.of(table).state, self.settings_of(table)
        full = state.count[0] >= state.history.shape[0]
        tf.cond(full, lambda: self.flush_table(table), lambda: None)
        if watch:  # with several workers, rows that only others have read may be stale
            self._watch(table, state, rows.ids)
        self._replay(state, settings, rows.ids)
        w, m, v = (tf.gather(x, rows.ids) for x in state[:3])
        g = rows.g + 2 * settings.l2 * w
        one = clips.ClipRows(g=g, w=w, cnt=rows.cnt, field=tf.zeros_like(rows.cnt), num_fields=1)
        (factor,) = clips.gradient_factors([one], settings)
        squares, factor_of_row = None, factor[:, tf.newaxis]
        if rows.squares is not None:
            # The sum over parts of (their gradient + L2 / parts)^2, after the clip.
            parts, l2 = settings.micro_batches, 2 * settings.l2 * w
            squares = factor_of_row**2 * (rows.squares + l2 * (2 * g - l2) / parts)
        after = _adam(w, m, v, g * factor_of_row, alpha, settings, squares)
        done = tf.cast(state.count, tf.int32)
        _scatter(state, rows.ids, after, done[0] + 1)
        assign_rows_locally(state.history, done, tf.reshape(alpha, [1]))
        assign_locally(state.count, tf.cast(done + 1, tf.int64))
        return factor

    def _watch(self, table: Variable, state: TableState, rows: Tensor) -> None:
        done = tf.cast(state.count[0], tf.float32)
        behind = (done <= WATCHED) & tf.reduce_any(tf.gather(state.last, rows) < done)

        def tell() -> bool:
            warn_of_stale_rows(table)
            return True

        tf.cond(behind, lambda: call_in_graph(tell, [], tf.bool), lambda: True)

    def flush_table(self, table: Variable, *, wait: bool = True) -> None:
        """Bring every row up to date and forget the history."""
        state = self.tables.of(table).state
        self._replay(state, self.settings_of(table), tf.range(table.shape[0]))
        assign_locally(state.last, tf.zeros(state.last.shape))
        assign_locally(state.count, tf.zeros([1], tf.int64))


def _absent_gradient(w: Tensor, settings: RowSettings) -> Tensor:
    """Return the clipped gradients of rows that are absent from the batch, [n, d]."""
    g, zero = 2 * settings.l2 * w, tf.zeros(tf.shape(w)[:1], tf.int32)
    if not settings.clips_absent_rows:
        return g
    one = clips.ClipRows(g=g, w=w, cnt=zero, field=zero, num_fields=1)
    (factor,) = clips.gradient_factors([one], settings)
    return g * factor[:, tf.newaxis]


def _adam(
    w: Tensor,
    m: Tensor,
    v: Tensor,
    g: Tensor,
    alpha: Tensor,
    settings: RowSettings,
    squares: Tensor | None,
) -> tuple[Tensor, ...]:
    squares = g * g if squares is None else tf.maximum(squares, 0.0)
    m = m + (g - m) * (1 - tf.constant(settings.beta_1, tf.float32))
    v = v + (squares - v) * (1 - tf.constant(settings.beta_2, tf.float32))
    return w - (m * alpha) / (tf.sqrt(v) + settings.epsilon), m, v


def _scatter(state: TableState, ids: Tensor, after: Sequence[Tensor], last: Tensor) -> None:
    for variable, value in zip(state[:3], after):
        assign_rows_locally(variable, ids, value)
    assign_rows_locally(state.last, ids, tf.fill(tf.shape(ids), tf.cast(last, tf.float32)))
