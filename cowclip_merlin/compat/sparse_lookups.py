"""Keep every occurrence of an id in the gradients of TensorFlow's lookups of sparse ids.

`tf.nn.embedding_lookup_sparse` and `tf.nn.safe_embedding_lookup_sparse` sum the gradients of equal
ids. Keras, feature columns and Merlin's list columns call them. CowClip counts the entries of a
gradient, so it needs one entry for each occurrence.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from types import ModuleType
from typing import Any

from cowclip_merlin.types import RaggedTensor, SparseTensor, Tensor, Variable


class _Changed:
    """A module with other functions under some of its names."""

    def __init__(self, module: ModuleType, **functions: Callable[..., Any]) -> None:
        self.__dict__ |= {"_module": module} | functions

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def keep_occurrences(tf: ModuleType) -> None:
    """Make the lookups of sparse ids give gradients with one entry for each occurrence of an id.

    They then read a row for each occurrence, as a lookup of dense ids does.
    """
    lookups = importlib.import_module("tensorflow.python.ops.embedding_ops")
    modules = [lookups]
    with suppress(ModuleNotFoundError):  # before TensorFlow 2.13, `lookups` has them, too
        modules.append(importlib.import_module("tensorflow.python.ops.ragged.ragged_embedding_ops"))

    def every_id(ids: Tensor) -> tuple[Tensor, Tensor]:
        return ids, tf.range(tf.size(ids))

    for module in modules:
        module.array_ops = _Changed(module.array_ops, unique=every_id)
    if hasattr(lookups, "compat"):  # else TensorFlow has no operation that sums in its gradient
        lookups.compat = _Changed(lookups.compat, forward_compatible=lambda *_: False)
    safe = _without_fillers(tf, lookups.safe_embedding_lookup_sparse)
    lookups.safe_embedding_lookup_sparse = tf.compat.v1.nn.safe_embedding_lookup_sparse = safe


def _without_fillers(tf: ModuleType, lookup: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a safe lookup that reads nothing for an empty entry without a default id.

    TensorFlow reads row 0 for it, and then replaces the result by zeros.
    """

    @wraps(lookup)
    def safe_lookup(
        embedding_weights: Variable,
        sparse_ids: RaggedTensor | SparseTensor,
        sparse_weights: RaggedTensor | SparseTensor | None = None,
        combiner: str = "mean",
        default_id: int | None = None,
        *args: Any,
        **more: Any,
    ) -> Tensor:
        if default_id is not None:
            given = embedding_weights, sparse_ids, sparse_weights, combiner, default_id
            return lookup(*given, *args, **more)
        ids, weights = (_as_sparse(tf, each) for each in (sparse_ids, sparse_weights))
        shape = ids.dense_shape
        size = tf.stack([tf.reduce_prod(shape[:-1]), shape[-1]])
        flat = tf.sparse.reshape(ids, size)
        valid = flat.values >= 0
        if weights is not None and combiner != "sum":
            valid &= weights.values > 0
        entries, position = tf.unique(tf.boolean_mask(flat.indices[:, 0], valid))
        column = tf.boolean_mask(flat.indices[:, 1], valid)
        places = tf.stack([tf.cast(position, tf.int64), column], 1)

        def without_empty(values: Tensor) -> SparseTensor:
            values = tf.boolean_mask(values, valid)
            return tf.SparseTensor(places, values, [tf.size(entries, tf.int64), size[1]])

        kept = None if weights is None else without_empty(weights.values)
        found = lookup(
            embedding_weights, without_empty(flat.values), kept, combiner, None, *args, **more
        )
        width = tf.shape(found, tf.int64)[1:]
        every = tf.scatter_nd(entries[:, tf.newaxis], found, tf.concat([size[:1], width], 0))
        result = tf.reshape(every, tf.concat([shape[:-1], width], 0))
        if shape.shape[0] is not None:
            result.set_shape([None] * (shape.shape[0] - 1) + found.shape[1:])
        return result

    return safe_lookup


def _as_sparse(tf: ModuleType, ids: RaggedTensor | SparseTensor) -> SparseTensor:
    return ids.to_sparse() if isinstance(ids, tf.RaggedTensor) else ids
