"""Apply Clippy to one step of a Keras optimizer: make the step, measure it, scale it back.

Source: Tang et al., arXiv 2302.09178; see `cowclip_merlin.clip.clippy_factor`. Clippy bounds the
change of the weights, so it works alike for Adam, Adagrad and any other optimizer. Their moments
and accumulators use the unclipped gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from cowclip_merlin import clip as clips
from cowclip_merlin import compat
from cowclip_merlin.optimizer.config import Config
from cowclip_merlin.optimizer.exchange.replica import assign_locally, assign_rows_locally
from cowclip_merlin.optimizer.keras_updates.clipped_gradients import (
    LayoutOf,
    clipped,
    field_of_row,
    num_fields,
)
from cowclip_merlin.tables import TableLayout
from cowclip_merlin.types import Gradient, Operation, Pair, Tensor, Variable

tf = compat.tensorflow()


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
