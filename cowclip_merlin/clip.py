"""CowClip and the clips of the paper's comparison, as pure functions.

They take NumPy arrays, and then need nothing else, or TensorFlow's tensors, and return the same
kind. Each clip returns a factor in [0, 1] for the gradient of each embedding row, and a clip of
updates for the row's update. Source: Zheng et al., arXiv 2204.06240, section 3.2, equation 6 and
Algorithm 1 (`cowclip`), Table 6 (the others but `clippy`, which `contrib.clippy` has).

`FUNCTIONS` has the function of each clip, and `choices.CLIPS` its properties.

>>> rows = ClipRows(
...     g=np.array([[3.0, 4.0], [0.3, 0.4]]),
...     w=np.array([[0.6, 0.8], [0.6, 0.8]]),
...     cnt=np.array([2, 1]),
...     field=np.array([0, 0]),
...     num_fields=1,
... )
>>> cowclip_factor(rows, RowSettings(r=1.0)).round(6).tolist()
[0.4, 1.0]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from cowclip_merlin import compat
from cowclip_merlin.choices import RowSettings, contributed
from cowclip_merlin.types import Array, ArrayOrTensor


def _segment_sum(x: Array, segments: Array, number: int) -> Array:
    return np.bincount(segments, x, number).astype(x.dtype)


_NUMPY = SimpleNamespace(
    add_n=sum,
    cast=np.asarray,
    fill=np.full,
    gather=np.take,
    math=SimpleNamespace(unsorted_segment_sum=_segment_sum),
    maximum=np.maximum,
    minimum=np.minimum,
    ones_like=np.ones_like,
    reduce_sum=np.sum,
    shape=np.shape,
    sqrt=np.sqrt,
    square=np.square,
    where=np.where,
)
"""Functions of NumPy by their names in TensorFlow, so that each clip is written once."""


def library_of(x: ArrayOrTensor) -> Any:
    """Return what computes with x: TensorFlow, or NumPy by the same names."""
    return _NUMPY if isinstance(x, (np.ndarray, np.generic)) else compat.any_tensorflow()


@dataclass(frozen=True, kw_only=True)
class ClipRows:
    """Rows of one table in one step: the input of a clip of gradients.

    Attributes:
        g: gradients, including L2, [n, d].
        w: weights, [n, d].
        cnt: occurrences in the batch, 0 for absent rows, [n].
        field: index of each row's field, int32 [n].
        num_fields: number of fields in the table.
    """

    g: ArrayOrTensor
    w: ArrayOrTensor
    cnt: ArrayOrTensor
    field: ArrayOrTensor
    num_fields: int


@dataclass(frozen=True, kw_only=True)
class RowUpdates:
    """Changes of one table's rows by a step of the optimizer: the input of a clip of updates.

    Attributes:
        update: change of the weights, of either sign, [n, d].
        w: weights before the step, [n, d].
        field: index of the field each row belongs to, int32 [n].
        num_fields: number of fields in the table.
    """

    update: ArrayOrTensor
    w: ArrayOrTensor
    field: ArrayOrTensor
    num_fields: int


ClipFunction = Callable[..., "ArrayOrTensor | list[ArrayOrTensor]"]

FUNCTIONS: dict[str, ClipFunction] = {}
"""The function of each clip, by the clip's name in `choices.CLIPS`."""


def clip_function(name: str) -> Callable[[ClipFunction], ClipFunction]:
    """Return a decorator that makes a function the one of this clip.

    The function takes `ClipRows`, or `RowUpdates` if the clip acts on updates, and `RowSettings`.
    It returns the factor of each row, [n]. With `Clip.all_tables`, it takes and returns lists.
    """

    def register(function: ClipFunction) -> ClipFunction:
        FUNCTIONS[name] = function
        return function

    return register


def row_norms(x: ArrayOrTensor) -> ArrayOrTensor:
    """Compute the Euclidean norm of each row, [n, d] -> [n]."""
    tf = library_of(x)
    return tf.sqrt(tf.reduce_sum(tf.square(x), axis=-1))


def shrink_factor(norm: ArrayOrTensor, threshold: ArrayOrTensor) -> ArrayOrTensor:
    """Compute `min(1, threshold / norm)`, or 1 where the norm is zero (zero gradients stay zero).

    >>> shrink_factor(np.array([0.0, 1.0, 4.0]), 2.0).tolist()
    [1.0, 1.0, 0.5]
    """
    tf = library_of(norm)
    one = tf.ones_like(norm)
    safe = tf.where(norm > 0, norm, one)
    return tf.where(norm > 0, tf.minimum(one, threshold / safe), one)


@clip_function("cowclip")
def cowclip_factor(rows: ClipRows, settings: RowSettings) -> ArrayOrTensor:
    """Clip as Algorithm 1: `threshold = max(cnt, 1) * max(r * ||w||, sqrt(d) * zeta)`, [n].

    An id that is absent from the batch counts as one occurrence, so that its L2 gradient does
    not become 0.
    """
    tf, d = library_of(rows.g), rows.w.shape[-1]
    floor = math.sqrt(d) * settings.zeta
    occurrences = tf.maximum(tf.cast(rows.cnt, rows.w.dtype), 1.0)
    threshold = occurrences * tf.maximum(settings.r * row_norms(rows.w), floor)
    return shrink_factor(row_norms(rows.g), threshold)


@clip_function("column")
def column_factor(rows: ClipRows, settings: RowSettings) -> ArrayOrTensor:
    """Clip column-wise with a constant: each row's gradient norm is at most `bound`, [n]."""
    return shrink_factor(row_norms(rows.g), settings.bound)


@clip_function("field")
def field_factor(rows: ClipRows, settings: RowSettings) -> ArrayOrTensor:
    """Clip field-wise with a constant bound on the gradient norm of a whole field, [n]."""
    factor = shrink_factor(_field_norms(rows.g, rows), settings.bound)
    return library_of(rows.g).gather(factor, rows.field)


@clip_function("adaptive_field")
def adaptive_field_factor(rows: ClipRows, settings: RowSettings) -> ArrayOrTensor:
    """Clip field-wise, adaptively: threshold `cnt_f * r * ||W_f||`, with the field's count, [n]."""
    tf = library_of(rows.g)
    cnt = tf.cast(rows.cnt, rows.w.dtype)
    cnt_f = tf.math.unsorted_segment_sum(cnt, rows.field, rows.num_fields)
    threshold = tf.maximum(cnt_f, 1.0) * settings.r * _field_norms(rows.w, rows)
    return tf.gather(shrink_factor(_field_norms(rows.g, rows), threshold), rows.field)


def _field_norms(x: ArrayOrTensor, rows: ClipRows) -> ArrayOrTensor:
    tf = library_of(x)
    squares = tf.reduce_sum(tf.square(x), axis=-1)
    return tf.sqrt(tf.math.unsorted_segment_sum(squares, rows.field, rows.num_fields))


@clip_function("global")
def global_factors(tables: Sequence[ClipRows], settings: RowSettings) -> list[ArrayOrTensor]:
    """Clip all tables by one factor: the norm of all gradients together is at most `bound`."""
    tf = library_of(tables[0].g)
    squares = tf.add_n([tf.reduce_sum(tf.square(rows.g)) for rows in tables])
    factor = shrink_factor(tf.sqrt(squares), settings.bound)
    return [tf.fill(tf.shape(rows.cnt), factor) for rows in tables]


@clip_function("none")
def unclipped_factor(rows: ClipRows, settings: RowSettings) -> ArrayOrTensor:
    """Return 1 for each row, [n]: no clip."""
    return library_of(rows.g).ones_like(rows.g[:, 0])


@clip_function("clippy")
def _clippy_factor(rows: RowUpdates, settings: RowSettings) -> ArrayOrTensor:
    return contributed("clippy_factor")(rows, settings)


def gradient_factors(tables: Sequence[ClipRows], settings: RowSettings) -> list[ArrayOrTensor]:
    """Compute the factors of a clip that acts on gradients.

    Args:
        tables: rows of every clipped table.
        settings: the clip and its thresholds.

    Returns:
        One array or tensor per table, with the factor of each row, [n].
    """
    function = FUNCTIONS[settings.clip]
    if settings.of_clip.all_tables:
        return function(tables, settings)
    return [function(rows, settings) for rows in tables]


def update_factor(rows: RowUpdates, settings: RowSettings) -> ArrayOrTensor:
    """Compute the factor of each row with a clip that acts on updates, [n]."""
    return FUNCTIONS[settings.clip](rows, settings)
