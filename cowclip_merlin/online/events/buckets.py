"""Ids hashed into a fixed number of buckets, as in systems whose tables have collisions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cowclip_merlin.kernels.compiled import compiled
from cowclip_merlin.online.events.values import MISSING
from cowclip_merlin.tables.id_map import seeded_hash
from cowclip_merlin.types import Array


def bucket_ids(
    ids: npt.NDArray[np.int64], field: int, buckets: int, *, seed: int = 0
) -> npt.NDArray[np.int64]:
    """Replace each id by its bucket, 0 to `buckets` - 1; a missing value stays `MISSING`.

    Two fields, or two seeds, put the same ids into unrelated buckets.

    Args:
        ids: int64 [n].
        field: index of their column.
        buckets: number of buckets, at least 1.
        seed: of the hash; a features file uses 0.

    >>> bucket_ids(np.array([7, 8, 7, MISSING]), 0, 10).tolist() == [9, 4, 9, MISSING]
    True
    """
    hashed = np.empty(ids.shape, np.int64)
    _fill_buckets(ids, seed, field, buckets, hashed)
    return hashed


@compiled
def _fill_buckets(ids: Array, seed: int, field: int, buckets: int, hashed: Array) -> None:
    for i in range(len(ids)):
        if ids[i] == MISSING:
            hashed[i] = MISSING
        else:
            hashed[i] = np.int64(seeded_hash(seed, field, ids[i]) % np.uint64(buckets))
