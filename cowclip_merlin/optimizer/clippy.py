"""Clippy around one step of a Keras optimizer: the step is made, measured and scaled back.

Source: Tang et al., arXiv 2302.09178; see `cowclip_merlin.clip.clippy_factor`. The bound is on
what the optimizer does to the weights, so it is the same for Adam, Adagrad and any other, and
their moments and accumulators see the gradient as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from cowclip_merlin import clip as clips
from cowclip_merlin import compat
from cowclip_merlin.optimizer.clipped_gradients import (
    LayoutOf,
    clipped,
    field_of_row,
    num_fields,
)
from cowclip_merlin.optimizer.config import Config
from cowclip_merlin.optimizer.replica import assign_locally, assign_rows_locally
from cowclip_merlin.tables import TableLayout

tf = compat.tensorflow()


def bounded_step(
    pairs: Sequence[tuple[Any, Any]],
    config: Config,
    clips_it: Sequence[bool],
    layout_of: LayoutOf,
    apply: Callable[[list[tuple[Any, Any]]], Any],
) -> list[Any]:
    """One step of the embedding optimizer, each field's move scaled back where it is too far.

    It holds a copy of the rows that move; with `update="dense"` these are the whole tables.

    Args:
        pairs: `tf.IndexedSlices`, one entry per occurrence, and table.
        config: of the optimizer.
        clips_it: for each table, whether it is bounded.
        layout_of: table -> its fields.
        apply: makes the optimizer's step from pairs of gradient and table.

    Returns:
        The factors of the batch's rows, one tensor for each table that is bounded.
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
    before: Any, gradient: Any, table: Any, config: Config, layout: TableLayout | None
) -> Any:
    """Take back a part of the step; the factors of the rows that moved, [n]."""
    after = _read(table, gradient)
    ids = gradient.indices if _is_sparse(gradient) else tf.range(table.shape[0])
    field, count = field_of_row(ids, layout), num_fields(layout)
    rows = clips.RowUpdates(update=after - before, w=before, field=field, num_fields=count)
    factor = clips.update_factor(config.clip, rows, config.clip_settings)
    share = factor[:, tf.newaxis]
    # Bit for bit the optimizer's own step where it is short enough.
    w = tf.where(share < 1, before + share * (after - before), after)
    if _is_sparse(gradient):
        assign_rows_locally(table, ids, w)
    else:
        assign_locally(table, w)
    return factor


def _read(table: Any, gradient: Any) -> Any:
    """The rows that a gradient moves."""
    if _is_sparse(gradient):
        return tf.gather(table, gradient.indices)
    return tf.identity(table)


def _of_batch(factor: Any, pair: tuple[Any, Any], ids: Any) -> Any:
    """Factors of the batch's distinct rows, of those of all rows that moved."""
    return factor if _is_sparse(pair[0]) else tf.gather(factor, tf.unique(ids)[0])


def _is_sparse(gradient: Any) -> bool:
    return isinstance(gradient, tf.IndexedSlices)
