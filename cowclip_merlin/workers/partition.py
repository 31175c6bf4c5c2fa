"""Which rows of a table are on which worker: row r is on worker `r mod N`."""

from __future__ import annotations


def shard_rows(rows: int, rank: int, size: int) -> int:
    """Return how many rows of a table a worker has.

    >>> [shard_rows(7, rank, 3) for rank in range(3)]
    [3, 2, 2]
    """
    return (rows - rank + size - 1) // size
