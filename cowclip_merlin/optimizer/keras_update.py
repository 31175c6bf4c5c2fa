"""Update embedding tables with the Keras embedding optimizer: clip before, or Clippy after.

The clipped gradients are steps 1 to 4 of Algorithm 1 in plain TensorFlow operations: sum and count,
L2, threshold, clip.

For Clippy, the step is made, measured and scaled back. Source: Tang et al., arXiv 2302.09178; see
`cowclip_merlin.clip.clippy_factor`. Clippy bounds the change of the weights, so it works alike for
Adam, Adagrad and any other optimizer. Their moments and accumulators use the unclipped gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from cowclip_merlin import choices, compat
from cowclip_merlin import clip as clips
from cowclip_merlin.errors import InputError
from cowclip_merlin.optimizer.config import Config, clips_absent_rows
from cowclip_merlin.optimizer.embedding_tables import EmbeddingTables
from cowclip_merlin.optimizer.exchange import apply_locally, assign_locally, assign_rows_locally
from cowclip_merlin.optimizer.unique_rows import UniqueRows, scatter, sum_duplicates
from cowclip_merlin.optimizer.update import Summary, summarize
from cowclip_merlin.tables import TableLayout
from cowclip_merlin.types import (
    Gradient,
    IndexedSlices,
    KerasOptimizer,
    Operation,
    Pair,
    Tensor,
    Variable,
)

tf = compat.tensorflow()


LayoutOf = Callable[[Variable], TableLayout | None]
"""Maps a table to its fields, or to None if the table is one field."""


def clipped(
    pairs: Sequence[Pair],
    config: Config,
    clips_it: Sequence[bool],
    layout_of: LayoutOf,
) -> tuple[list[Pair], list[Tensor]]:
    """Add L2 to gradients and clip them; the result is dense for "dense", sparse for "lazy".

    Args:
        pairs: `tf.IndexedSlices` with one entry per occurrence, and table.
        config: the optimizer's settings.
        clips_it: for each table, whether it is clipped; all tables get L2.
        layout_of: maps a table to its fields.

    Returns:
        Pairs of gradient and table, and the factors of the batch's rows, one tensor for each
        clipped table.
    """
    unique = [sum_duplicates(slices) for slices, _ in pairs]
    rows = [rows_to_clip(u, t, config, layout_of(t)) for u, (_, t) in zip(unique, pairs)]
    chosen = [i for i, each in enumerate(clips_it) if each]
    factors = {}
    if chosen:
        to_clip = [rows[i] for i in chosen]
        found = clips.gradient_factors(config.clip, to_clip, config.clip_settings)
        factors = dict(zip(chosen, found))
    result = []
    for i, (_, table) in enumerate(pairs):
        g = rows[i].g * factors[i][:, tf.newaxis] if i in factors else rows[i].g
        result.append((_gradient(g, unique[i], table, config), table))
    return result, [tf.boolean_mask(factors[i], rows[i].cnt > 0) for i in chosen]


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
    return config.update == "dense" and clips_absent_rows(config)


def field_of_row(ids: Tensor, layout: TableLayout | None) -> Tensor:
    """Return the index of each row's field, int32 [n]; without a layout, all indices are 0."""
    ids = tf.cast(ids, tf.int64)
    if layout is None:
        return tf.zeros_like(ids, tf.int32)
    return tf.searchsorted(tf.constant(layout.ends, tf.int64), ids, side="right")


def num_fields(layout: TableLayout | None) -> int:
    """Return the number of fields in a table."""
    return 1 if layout is None else len(layout.fields)


def bounded_step(
    pairs: Sequence[Pair],
    config: Config,
    clips_it: Sequence[bool],
    layout_of: LayoutOf,
    apply: Callable[[list[Pair]], Operation | None],
) -> list[Tensor]:
    """Make one step of the embedding optimizer, and scale back each field's change if too large.

    It copies the rows that change; with `update="dense"` these are the whole tables.

    Args:
        pairs: `tf.IndexedSlices` with one entry per occurrence, and table.
        config: the optimizer's settings.
        clips_it: for each table, whether it is clipped.
        layout_of: maps a table to its fields.
        apply: applies pairs of gradient and table with the optimizer.

    Returns:
        The factors of the batch's rows, one tensor for each clipped table.
    """
    gradients, _ = clipped(pairs, replace(config, clip="none"), clips_it, layout_of)
    chosen = [pair for pair, each in zip(gradients, clips_it) if each]
    before = [_read(table, gradient) for gradient, table in chosen]
    with tf.control_dependencies(before):
        done = apply(gradients)
    with tf.control_dependencies([] if done is None else [done]):
        factors = [
            _hold_back(w, g, table, config, layout_of(table))
            for w, (g, table) in zip(before, chosen)
        ]
    batches = [slices.indices for (slices, _), each in zip(pairs, clips_it) if each]
    return [_of_batch(f, *each) for f, each in zip(factors, zip(chosen, batches))]


def _hold_back(
    before: Tensor, gradient: Gradient, table: Variable, config: Config, layout: TableLayout | None
) -> Tensor:
    """Scale back the change of a table; return the factors of the changed rows, [n]."""
    after = _read(table, gradient)
    ids = gradient.indices if _is_sparse(gradient) else tf.range(table.shape[0])
    field, count = field_of_row(ids, layout), num_fields(layout)
    rows = clips.RowUpdates(update=after - before, w=before, field=field, num_fields=count)
    factor = clips.update_factor(config.clip, rows, config.clip_settings)
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


class KerasUpdate:
    """An `Update` by the Keras optimizer, with clipped gradients or (Clippy) clipped steps.

    Rows are always up to date.

    Args:
        config: settings of the steps.
        tables: the embedding tables.
        optimizer: the embedding optimizer.
    """

    def __init__(
        self, *, config: Config, tables: EmbeddingTables, optimizer: KerasOptimizer
    ) -> None:
        self.config, self.tables, self.optimizer = config, tables, optimizer

    def apply(self, pairs: Sequence[Pair]) -> tuple[list[Tensor], Summary]:
        """Make one step of all tables; see `Update.apply`."""
        arguments = pairs, self.config, self.tables.clips(pairs), self.tables.layout_of
        if choices.CLIPS[self.config.clip].acts_on == "update":
            steps = factors = bounded_step(*arguments, partial(apply_locally, self.optimizer))
        else:
            gradients, factors = clipped(*arguments)
            steps = [apply_locally(self.optimizer, gradients)]
        return steps, summarize(factors)

    def apply_dense(self, optimizer: KerasOptimizer, pairs: Sequence[Pair]) -> Operation:
        """Make one step of the dense weights; see `Update.apply_dense`."""
        return apply_locally(optimizer, pairs)

    def sum_rows(self, slices: IndexedSlices) -> UniqueRows:
        """Sum the gradients of equal ids and count them, without a check; see `sum_duplicates`."""
        return sum_duplicates(slices)

    def create_state(self, tables: Sequence[Variable]) -> None:
        """Check the tables; they have no state but the optimizer's slots.

        Raises:
            InputError: if TensorFlow's dense Adam cannot count the numbers of a table.
        """
        if self.config.update == "dense" and isinstance(
            self.optimizer, tf.keras.optimizers.legacy.Adam
        ):
            for table in tables:
                _refuse_large(table)

    def flush(self, steps_made: Callable[[], int]) -> None:
        """Do nothing: all rows are up to date."""


def _refuse_large(table: Variable) -> None:
    """Refuse a table on a GPU of which TensorFlow's Adam counts the numbers in int32."""
    on_gpu = tf.DeviceSpec.from_string(table.device).device_type == "GPU"
    if on_gpu and table.shape.num_elements() >= 1 << 31:
        raise InputError(
            f"table {table.name!r} has {table.shape.num_elements():,} numbers, but TensorFlow's "
            'dense Adam on a GPU can count fewer than 2^31: use update="exact", or '
            'backend="cupy"'
        )
