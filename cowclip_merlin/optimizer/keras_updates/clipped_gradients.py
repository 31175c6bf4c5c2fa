"""Compute clipped gradients of embedding tables for a Keras optimizer.

Steps 1 to 4 of Algorithm 1 in plain TensorFlow operations: sum and count, L2, threshold, clip.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cowclip_merlin import clip as clips
from cowclip_merlin import compat
from cowclip_merlin.optimizer.config import Config, clips_absent_rows
from cowclip_merlin.optimizer.unique_rows import UniqueRows, scatter, sum_duplicates
from cowclip_merlin.tables import TableLayout
from cowclip_merlin.types import IndexedSlices, Pair, Tensor, Variable

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
