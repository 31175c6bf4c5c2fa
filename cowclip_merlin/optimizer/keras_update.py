"""Update embedding tables with the Keras embedding optimizer: clip before, or Clippy after.

The clipped gradients are steps 1 to 4 of Algorithm 1 in plain TensorFlow operations: sum and count,
L2, threshold, clip.

For Clippy, the step is made, measured and scaled back. Source: Tang et al., arXiv 2302.09178; see
`cowclip_merlin.contrib.clippy`. Clippy bounds the change of the weights, so it works alike for
Adam, Adagrad and any other optimizer. Their moments and accumulators use the unclipped gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cowclip_merlin import choices, compat
from cowclip_merlin import clip as clips
from cowclip_merlin.errors import InputError
from cowclip_merlin.optimizer.config import Config
from cowclip_merlin.optimizer.exchange import assign_locally, assign_rows_locally
from cowclip_merlin.optimizer.row_updates.engine import Engine, Summary, summarize
from cowclip_merlin.optimizer.unique_rows import UniqueRows, scatter, sum_duplicates
from cowclip_merlin.tables import TableLayout
from cowclip_merlin.types import Gradient, IndexedSlices, Pair, Tensor, Variable

tf = compat.tensorflow()


@dataclass(frozen=True, kw_only=True)
class KerasEngine(Engine):
    """Makes steps by the Keras optimizer, with clipped gradients or (Clippy) clipped changes.

    The only state of rows is the optimizer's slots.
    """

    def create(self, tables: Sequence[Variable]) -> None:
        """Refuse a table on a GPU of which TensorFlow's dense Adam counts the numbers in int32.

        Raises:
            InputError: if the table is too large for it.
        """
        adam = isinstance(self.optimizer, tf.keras.optimizers.legacy.Adam)
        for table in tables if adam and self.config.update == "dense" else ():
            on_gpu = tf.DeviceSpec.from_string(table.device).device_type == "GPU"
            if on_gpu and table.shape.num_elements() >= 1 << 31:
                raise InputError(
                    f"table {table.name!r} has {table.shape.num_elements():,} numbers, but "
                    "TensorFlow's dense Adam on a GPU can count fewer than 2^31: use "
                    'update="exact", or backend="cupy"'
                )

    def catch_up(self, tables: Sequence[Variable], ids: Tensor) -> None:
        """Do nothing: all rows are up to date."""

    def flush(self, *, wait: bool = True) -> None:
        """Do nothing: all rows are up to date."""

    def step(self, pairs: Sequence[Pair]) -> tuple[list[Tensor], Summary]:
        """Make one step of all tables; see `Engine.step`."""
        clipped = [not self.tables.skips(table) for _, table in pairs]
        if choices.CLIPS[self.config.clip].acts_on == "update":
            steps = factors = self._bounded_step(pairs, clipped)
            return steps, summarize(factors, [True] * len(factors))
        gradients, factors = self._gradients(pairs, clipped, self.config)
        made = self.optimizer.apply_gradients(gradients, experimental_aggregate_gradients=False)
        return [made], summarize(factors, clipped)

    def _gradients(
        self, pairs: Sequence[Pair], clipped: Sequence[bool], config: Config
    ) -> tuple[list[Pair], list[Tensor | None]]:
        """Add L2 to gradients and clip them; the result is dense for "dense", sparse for "lazy".

        Args:
            pairs: `tf.IndexedSlices` with one entry per occurrence, and table.
            clipped: for each table, whether it is clipped; all tables get L2.
            config: settings of the clip.

        Returns:
            Pairs of gradient and table, and the factors of the batch's rows for each table, None
            without a clip.
        """
        unique = [sum_duplicates(slices) for slices, _ in pairs]
        layout_of = self.tables.layout_of
        rows = [rows_to_clip(u, t, config, layout_of(t)) for u, (_, t) in zip(unique, pairs)]
        factors: list[Tensor | None] = [None] * len(pairs)
        if chosen := [i for i, each in enumerate(clipped) if each]:
            to_clip = [rows[i] for i in chosen]
            found = clips.gradient_factors(to_clip, config)
            for i, factor in zip(chosen, found):
                factors[i] = factor
        gradients, present = [], []
        for (_, table), each, row, f in zip(pairs, unique, rows, factors):
            g = row.g if f is None else row.g * f[:, tf.newaxis]
            gradients.append((_gradient(g, each, table, config), table))
            present.append(None if f is None else tf.boolean_mask(f, row.cnt > 0))
        return gradients, present

    def _bounded_step(self, pairs: Sequence[Pair], clipped: Sequence[bool]) -> list[Tensor]:
        """Make a step of the embedding optimizer; scale back each field's change if too large.

        It copies the rows that change; with `update="dense"` these are the whole tables. It returns
        the factors of the batch's rows, one tensor for each clipped table.
        """
        gradients, _ = self._gradients(pairs, clipped, replace(self.config, clip="none"))
        chosen = [pair for pair, each in zip(gradients, clipped) if each]
        before = [_read(table, gradient) for gradient, table in chosen]
        with tf.control_dependencies(before):
            done = self.optimizer.apply_gradients(gradients, experimental_aggregate_gradients=False)
        with tf.control_dependencies([] if done is None else [done]):
            factors = [
                _hold_back(w, g, table, self.config, self.tables.layout_of(table))
                for w, (g, table) in zip(before, chosen)
            ]
        batches = [slices.indices for (slices, _), each in zip(pairs, clipped) if each]
        return [_of_batch(f, *each) for f, each in zip(factors, zip(chosen, batches))]


def rows_to_clip(
    unique: UniqueRows, table: Variable, config: Config, layout: TableLayout | None
) -> clips.ClipRows:
    """Return the rows whose gradients may be clipped: the batch's rows or the whole table."""
    if clips_whole_table(config):
        w = tf.convert_to_tensor(table)
        data, cnt = scatter(unique, table.shape[0])
        field = field_of_row(tf.range(table.shape[0], dtype=tf.int64), layout)
    else:
        w, data, cnt = tf.gather(table, unique.ids), unique.g, unique.cnt
        field = field_of_row(unique.ids, layout)
    g = data + 2 * config.l2 * w
    return clips.ClipRows(g=g, w=w, cnt=cnt, field=field, num_fields=num_fields(layout))


def _gradient(
    g: Tensor, unique: UniqueRows, table: Variable, config: Config
) -> Tensor | IndexedSlices:
    if config.update == "lazy":
        # Not tf.shape(table), which reads the whole table.
        return tf.IndexedSlices(g, unique.ids, tf.constant(table.shape.as_list()))
    if clips_whole_table(config):
        return g
    # Absent rows have only L2, and 2 * l2 <= r keeps it below their threshold r * ||w||.
    absent = 2 * config.l2 * tf.convert_to_tensor(table)
    return tf.tensor_scatter_nd_update(absent, unique.ids[:, tf.newaxis], g)


def clips_whole_table(config: Config) -> bool:
    """Whether the clip may also scale absent rows."""
    return config.update == "dense" and config.clips_absent_rows


def field_of_row(ids: Tensor, layout: TableLayout | None) -> Tensor:
    """Return the index of each row's field, int32 [n]; without a layout, all indices are 0."""
    ids = tf.cast(ids, tf.int64)
    if layout is None:
        return tf.zeros_like(ids, tf.int32)
    return tf.searchsorted(tf.constant(layout.ends, tf.int64), ids, side="right")


def num_fields(layout: TableLayout | None) -> int:
    """Return the number of fields in a table."""
    return 1 if layout is None else len(layout.fields)


def _hold_back(
    before: Tensor, gradient: Gradient, table: Variable, config: Config, layout: TableLayout | None
) -> Tensor:
    """Scale back the change of a table; return the factors of the changed rows, [n]."""
    after = _read(table, gradient)
    ids = gradient.indices if _is_sparse(gradient) else tf.range(table.shape[0])
    field, count = field_of_row(ids, layout), num_fields(layout)
    rows = clips.RowUpdates(update=after - before, w=before, field=field, num_fields=count)
    factor = clips.update_factor(rows, config)
    share = factor[:, tf.newaxis]
    # Where the step is small enough, the result is bit-equal to the optimizer's.
    w = tf.where(share < 1, before + share * (after - before), after)
    if _is_sparse(gradient):
        assign_rows_locally(table, ids, w)
    else:
        assign_locally(table, w)
    return factor


def _read(table: Variable, gradient: Gradient) -> Tensor:
    """Read the rows that a gradient changes."""
    if _is_sparse(gradient):
        return tf.gather(table, gradient.indices)
    return tf.identity(table)


def _of_batch(factor: Tensor, pair: Pair, ids: Tensor) -> Tensor:
    """Select the factors of the batch's distinct rows from those of all changed rows."""
    return factor if _is_sparse(pair[0]) else tf.gather(factor, tf.unique(ids)[0])


def _is_sparse(gradient: Gradient) -> bool:
    return isinstance(gradient, tf.IndexedSlices)
