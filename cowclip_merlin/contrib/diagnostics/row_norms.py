"""Store the norms of a batch's rows, and average them over groups, such as deciles of frequency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cowclip_merlin.errors import InputError
from cowclip_merlin.tables import TableLayout
from cowclip_merlin.types import Array

if TYPE_CHECKING:
    from cowclip_merlin.workflows import PreparedData


MEASURES = (
    "rows",
    "occurrences",
    "clipped_share",
    "mean_clip_factor",
    "w_norm",
    "g_norm",
    "l2_g_norm",
    "g_norm_per_cnt",
)
"""Measures of a group of rows, in the order of the columns of `diagnostics.csv`."""


@dataclass(frozen=True, kw_only=True)
class RowNorms:
    """The distinct rows of one batch, sorted by field and id.

    Attributes:
        fields: names of the fields.
        row: number of the row in a fused table, int64 [u].
        field: index of the row's field in `fields`, int64 [u].
        id: the row's id in its field, int64 [u].
        cnt: occurrences in the batch (`cnt` in Algorithm 1), int64 [u].
        w_norm: `||w||`, float32 [u].
        g_norm: `||g||` of the data gradient summed over the occurrences, without L2 and before
            the clip, float32 [u].
        l2_g_norm: `||g + 2 * l2 * w||`, the norm that the clip bounds, float32 [u].
        factor: factor in [0, 1] by which the clip multiplies the gradient, float32 [u]; NaN
            with "clippy", which does not clip gradients.
    """

    fields: tuple[str, ...]
    row: npt.NDArray[np.int64]
    field: npt.NDArray[np.int64]
    id: npt.NDArray[np.int64]
    cnt: npt.NDArray[np.int64]
    w_norm: npt.NDArray[np.float32]
    g_norm: npt.NDArray[np.float32]
    l2_g_norm: npt.NDArray[np.float32]
    factor: npt.NDArray[np.float32]

    def __len__(self) -> int:
        """Number of distinct rows."""
        return len(self.cnt)


def row_norms_by_field(
    layout: TableLayout,
    rows: npt.NDArray[np.int64],
    cnt: npt.NDArray[np.int64],
    values: npt.NDArray[np.float32],
) -> RowNorms:
    """Convert rows of a fused table to rows of their fields.

    Args:
        layout: fields of the fused table.
        rows: distinct row numbers in the fused table, integer [u].
        cnt: occurrences, integer [u].
        values: `w_norm`, `g_norm`, `l2_g_norm` and `factor`, float32 [4, u].

    >>> layout = TableLayout({"a": 2, "b": 3})
    >>> norms = row_norms_by_field(layout, np.array([4, 0]), np.array([1, 2]), np.ones((4, 2)))
    >>> norms.field.tolist(), norms.id.tolist(), norms.cnt.tolist()
    ([0, 1], [0, 2], [2, 1])
    """
    order = np.argsort(rows)
    rows = rows[order]
    field = layout.field_of_row(rows)
    return RowNorms(
        fields=tuple(layout.fields),
        row=rows,
        field=field,
        id=rows - np.array(layout.offsets)[field],
        cnt=cnt[order].astype(np.int64),
        **dict(zip(("w_norm", "g_norm", "l2_g_norm", "factor"), values[:, order])),
    )


def group_means(norms: RowNorms, group: npt.NDArray[np.integer], groups: int) -> dict[str, Array]:
    """Compute `MEASURES` of each group of rows, [groups]; means of an empty group are NaN.

    `g_norm_per_cnt` is the mean of `||g|| / cnt`, the paper's Figure 4 (b).

    Args:
        norms: norms of one batch.
        group: each row's group, integer [u], from 0 to groups - 1.
        groups: number of groups.
    """
    rows = np.bincount(group, minlength=groups)

    def mean(values: Array) -> npt.NDArray[np.float64]:
        sums = np.bincount(group, weights=values.astype(np.float64), minlength=groups)
        return np.divide(sums, rows, out=np.full(groups, np.nan), where=rows > 0)

    return {
        "rows": rows,
        "occurrences": np.bincount(group, weights=norms.cnt, minlength=groups).astype(np.int64),
        "clipped_share": mean(np.where(np.isnan(norms.factor), np.nan, norms.factor < 1)),
        "mean_clip_factor": mean(norms.factor),
        "w_norm": mean(norms.w_norm),
        "g_norm": mean(norms.g_norm),
        "l2_g_norm": mean(norms.l2_g_norm),
        "g_norm_per_cnt": mean(norms.g_norm / norms.cnt),
    }


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
