"""CowClip and the clips it is compared with, as pure functions on TensorFlow tensors.

Each rule of `CLIPS` answers one question: by which factor in [0, 1] is the gradient of each
embedding row multiplied? Source: Zheng et al., arXiv 2204.06240, section 3.2, equation 6 and
Algorithm 1 (`cowclip`), Table 6 (the others). `clippy_factor` answers it for the update.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from cowclip_merlin import compat

tf = compat.tensorflow()

Tensor = Any  # tf.Tensor; TensorFlow ships no usable type stubs


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Hyper-parameters of a clip.

    Attributes:
        r: threshold relative to the norm of the weights.
        zeta: lower bound of the row norm, per coordinate.
        bound: constant threshold of the rules that are not adaptive.
        lambda_rel: Clippy's bound on a coordinate's move, relative to the coordinate.
        lambda_abs: what Clippy adds to that bound.
    """

    r: float = 1.0
    zeta: float = 1e-5
    bound: float = 25.0
    lambda_rel: float = 0.5
    lambda_abs: float = 1e-2


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of one table in one step.

    Attributes:
        g: gradients, L2 included, [n, d].
        w: weights, [n, d].
        cnt: occurrences in the batch, 0 for rows that are absent from it, [n].
        field: index of the field each row belongs to, int32 [n].
        num_fields: number of fields in the table.
    """

    g: Tensor
    w: Tensor
    cnt: Tensor
    field: Tensor
    num_fields: int


def row_norms(x: Tensor) -> Tensor:
    """Euclidean norm of each row, [n, d] -> [n]."""
    return tf.sqrt(tf.reduce_sum(tf.square(x), axis=-1))


def shrink_factor(norm: Tensor, threshold: Tensor) -> Tensor:
    """`min(1, threshold / norm)`, 1 where the norm is zero (a zero gradient stays zero).

    >>> shrink_factor(tf.constant([0.0, 1.0, 4.0]), 2.0).numpy().tolist()
    [1.0, 1.0, 0.5]
    """
    one = tf.ones_like(norm)
    safe = tf.where(norm > 0, norm, one)
    return tf.where(norm > 0, tf.minimum(one, threshold / safe), one)


def cowclip_factor(rows: Rows, settings: Settings) -> Tensor:
    """Algorithm 1: `threshold = max(cnt, 1) * max(r * ||w||, sqrt(d) * zeta)`, [n].

    An id that is absent from the batch counts as one occurrence, so that its L2 gradient
    is not switched off.
    """
    d = rows.w.shape[-1]
    floor = math.sqrt(d) * settings.zeta
    occurrences = tf.maximum(tf.cast(rows.cnt, rows.w.dtype), 1.0)
    threshold = occurrences * tf.maximum(settings.r * row_norms(rows.w), floor)
    return shrink_factor(row_norms(rows.g), threshold)


def column_factor(rows: Rows, settings: Settings) -> Tensor:
    """Column-wise with a constant bound: each row's gradient norm is at most `bound`, [n]."""
    return shrink_factor(row_norms(rows.g), settings.bound)


def field_factor(rows: Rows, settings: Settings) -> Tensor:
    """Field-wise with a constant bound on the gradient norm of a whole field, [n]."""
    factor = shrink_factor(_field_norms(rows.g, rows), settings.bound)
    return tf.gather(factor, rows.field)


def adaptive_field_factor(rows: Rows, settings: Settings) -> Tensor:
    """Adaptive field-wise: threshold `cnt_f * r * ||W_f||`, counts summed over the field, [n]."""
    cnt = tf.cast(rows.cnt, rows.w.dtype)
    cnt_f = tf.math.unsorted_segment_sum(cnt, rows.field, rows.num_fields)
    threshold = tf.maximum(cnt_f, 1.0) * settings.r * _field_norms(rows.w, rows)
    return tf.gather(shrink_factor(_field_norms(rows.g, rows), threshold), rows.field)


def _field_norms(x: Tensor, rows: Rows) -> Tensor:
    squares = tf.reduce_sum(tf.square(x), axis=-1)
    return tf.sqrt(tf.math.unsorted_segment_sum(squares, rows.field, rows.num_fields))


def global_factors(tables: Sequence[Rows], settings: Settings) -> list[Tensor]:
    """One factor for all: the norm of the gradients of all tables together is at most `bound`."""
    squares = tf.add_n([tf.reduce_sum(tf.square(rows.g)) for rows in tables])
    factor = shrink_factor(tf.sqrt(squares), settings.bound)
    return [tf.fill(tf.shape(rows.cnt), factor) for rows in tables]


def clippy_factor(
    move: Tensor, w: Tensor, field: Tensor, settings: Settings, *, num_fields: int
) -> Tensor:
    """One factor per field: no coordinate moves by more than `lambda_rel * |w| + lambda_abs`, [n].

    Clippy bounds the update of an optimizer, not its gradient (Tang et al., "Improving Training
    Stability for Multitask Ranking Models in Recommender Systems", arXiv 2302.09178): with u the
    preconditioned gradient, `min(1, min_i (lambda_rel * |w_i| + lambda_abs) / (lr * |u_i|))`
    over the coordinates i of a variable, which scales the learning rate of its step. A field is
    here what a variable is there.

    Args:
        move: `lr * u`, of either sign, [n, d].
        w: weights before the step, [n, d].
        field: index of the field each row belongs to, int32 [n].
        settings: `lambda_rel` and `lambda_abs` are read.
        num_fields: number of fields in the table.

    >>> move, w = tf.constant([[4.0, 1.0], [0.0, 0.5]]), tf.constant([[1.0, 0.0], [0.0, 0.0]])
    >>> chosen = Settings(lambda_rel=0.5, lambda_abs=0.5)
    >>> clippy_factor(move, w, tf.constant([0, 1]), chosen, num_fields=2).numpy().tolist()
    [0.25, 1.0]
    """
    limit = settings.lambda_rel * tf.abs(w) + settings.lambda_abs
    per_row = tf.reduce_min(shrink_factor(tf.abs(move), limit), axis=-1)
    return tf.gather(tf.math.unsorted_segment_min(per_row, field, num_fields), field)


def _each(
    rule: Callable[[Rows, Settings], Tensor],
) -> Callable[[Sequence[Rows], Settings], list[Tensor]]:
    return lambda tables, settings: [rule(rows, settings) for rows in tables]


@dataclass(frozen=True, kw_only=True)
class Clip:
    """A named clip.

    Attributes:
        factors: rows of every clipped table -> one factor per row and table.
        spares_absent_rows: whether L2 alone is never clipped while `2 * l2 <= r`, so that
            absent rows need not be looked at.
    """

    factors: Callable[[Sequence[Rows], Settings], list[Tensor]]
    spares_absent_rows: bool = False


CLIPS: Mapping[str, Clip] = MappingProxyType(
    {
        "cowclip": Clip(factors=_each(cowclip_factor), spares_absent_rows=True),
        "none": Clip(
            factors=lambda tables, _: [tf.ones_like(rows.g[:, 0]) for rows in tables],
            spares_absent_rows=True,
        ),
        "global": Clip(factors=global_factors),
        "field": Clip(factors=_each(field_factor)),
        "column": Clip(factors=_each(column_factor)),
        "adaptive_field": Clip(factors=_each(adaptive_field_factor)),
    }
)
"""Clips by name. `cowclip` is the adaptive column-wise clip of Table 6."""
