"""Divide embedding rows into deciles by the frequency of their ids in the training data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cowclip_merlin.errors import InputError

if TYPE_CHECKING:
    from cowclip_merlin.workflows import PreparedData

DECILES = 10


@dataclass(frozen=True, kw_only=True)
class Deciles:
    """The decile of every embedding row, which is fixed for a run.

    Attributes:
        of_row: decile of each row, numbered through all fields, 0 (rarest) to 9, uint8 [N].
        least: smallest count in each decile, int64 [10]; 0 if it has no ids.
        most: largest count in each decile, int64 [10]; 0 if it has no ids.
    """

    of_row: npt.NDArray[np.uint8]
    least: npt.NDArray[np.int64]
    most: npt.NDArray[np.int64]


def decile_edges(
    count: npt.NDArray[np.int64], *, rows: int, batch_size: int
) -> npt.NDArray[np.int64]:
    """Compute the counts at which the deciles of a batch's distinct rows end, int64 [9].

    An id seen `count` times in `rows` rows is in a batch of `b` with probability
    `1 - (1 - count / rows)^b`. With these weights, the deciles divide the distinct rows that a
    batch is expected to have. Deciles of the vocabulary would consist mostly of absent ids.

    Args:
        count: count of each id, [N].
        rows: number of training rows.
        batch_size: rows in a batch.

    >>> decile_edges(np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 10]), rows=10, batch_size=1000)
    array([1, 2, 3, 4, 5, 6, 7, 8, 9])
    """
    values, ids = np.unique(count, return_counts=True)
    share = np.minimum(values / max(rows, 1), 1.0)
    with np.errstate(divide="ignore"):  # log(0) for an id in every row, which is always present
        present = -np.expm1(batch_size * np.log1p(-share))
    up_to = np.cumsum(ids * present)
    wanted = up_to[-1] * np.arange(1, DECILES) / DECILES
    return values[np.minimum(np.searchsorted(up_to, wanted), len(values) - 1)]


def compute_deciles(
    counts: Sequence[npt.NDArray[np.int64]], *, rows: int, batch_size: int
) -> Deciles:
    """Compute the decile of every row; ids with equal counts share a decile.

    If many ids have the same count, a decile has more than a tenth of the rows, and the next
    deciles have fewer rows or are empty.

    Args:
        counts: counts of each field's ids, in order of id.
        rows: number of training rows.
        batch_size: rows in a batch.
    """
    count = np.concatenate(counts)
    ends = decile_edges(count, rows=rows, batch_size=batch_size)
    of_row = np.searchsorted(ends, count, side="left").astype(np.uint8)
    # Ids with count 0 are in the rarest decile, but its smallest and largest count ignore them.
    seen = [count[(of_row == d) & (count > 0)] for d in range(DECILES)]
    return Deciles(
        of_row=of_row,
        least=np.array([each.min(initial=count.max()) if len(each) else 0 for each in seen]),
        most=np.array([each.max(initial=0) for each in seen]),
    )


def read_deciles(data: PreparedData, *, batch_size: int) -> Deciles:
    """Compute the deciles of a prepared folder from the counts that `prepare` wrote.

    Raises:
        InputError: if the counts are missing, or do not match the vocabulary.
    """
    counts = [_counts(data, field) for field in data.tables]
    return compute_deciles(counts, rows=data.fitted_rows, batch_size=batch_size)


def _counts(data: PreparedData, field: str) -> npt.NDArray[np.int64]:
    from cowclip_merlin.workflows.prepared.counts import read_counts

    file = data.path / "counts" / f"{field}.parquet"
    try:
        count = read_counts(data, field)["count"].to_numpy()
    except InputError as error:
        raise InputError(f"{error}, or train with `diagnostics_every` 0") from None
    if len(count) != data.cardinalities[field]:
        raise InputError(
            f"{file}: {len(count)} ids, but the field has {data.cardinalities[field]}; prepare the "
            "data again, or train with `diagnostics_every` 0"
        )
    return count
