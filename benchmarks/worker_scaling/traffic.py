"""What the workers must send each other in a step, by formula."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from cowclip_merlin.bench.random_data import CONTINUOUS, NUM_FIELDS
from cowclip_merlin.types import Array
from cowclip_merlin.workers import Workers

ID_AND_COUNT = 8
"""Bytes of an id and its count, which travel with every row."""


def largest_distinct(ids: Array, batches: Iterable[Array], workers: int) -> float:
    """Return u: the distinct ids of a worker's part of a batch.

    It is the largest of the workers, as all pad to that, and the mean over the batches.

    Args:
        ids: numbers of table rows, integer [n, F].
        batches: row numbers of every batch.
        workers: number of workers.

    >>> largest_distinct(np.array([[1, 2], [1, 3], [1, 2], [1, 2]]), [np.arange(4)], 2)
    3.0
    """
    group = [Workers(rank, ("",) * workers) for rank in range(workers)]
    return float(
        statistics.mean(
            max(len(np.unique(ids[batch[slice(*each.part_of(len(batch)))]])) for each in group)
            for batch in batches
        )
    )


def row_bytes(tables: str, distinct: float, workers: int, dim: int) -> float:
    """Return the bytes of ids, counts, rows and gradients that a worker sends, without padding.

    The wide part has one number for every id besides the embedding.

    Args:
        tables: "mirrored" or "sharded".
        distinct: result of `largest_distinct`.
        workers: number of workers.
        dim: length of an embedding row.

    >>> row_bytes("mirrored", 100, 3, 10), row_bytes("sharded", 90, 3, 10)
    (10400.0, 5760.0)
    """
    others, numbers = workers - 1, 4 * (dim + 1)
    if tables == "mirrored":  # sums of gradients, to all others
        return float(others * distinct * (ID_AND_COUNT + numbers))
    # Ids one way, rows back, gradients the first way again; a worker keeps its own ids.
    return others / workers * distinct * (ID_AND_COUNT + 2 * numbers)


def dense_bytes(weights: int, workers: int) -> float:
    """Return the bytes of dense gradients that a worker sends for an all-reduce in a ring.

    >>> dense_bytes(1000, 2)
    4000.0
    """
    return 2 * (workers - 1) / workers * 4 * weights


def count_dense_weights(dim: int, mlp: Sequence[int]) -> int:
    """Return the number of weights of a DeepFM outside of its tables, for Criteo's columns.

    >>> count_dense_weights(10, (400, 400, 400))
    430801
    """
    widths = [CONTINUOUS + NUM_FIELDS * dim, *mlp, 1]
    return sum((inputs + 1) * outputs for inputs, outputs in pairwise(widths))
