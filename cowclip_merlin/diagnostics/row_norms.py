"""Store the norms of a batch's rows, and average them over groups of rows, in NumPy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cowclip_merlin.tables import TableLayout
from cowclip_merlin.types import Array

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
