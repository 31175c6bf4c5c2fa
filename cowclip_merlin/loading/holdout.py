"""Train rows that are kept back, so that settings can be chosen without the test rows.

Which rows these are depends on the number of train rows and the fraction alone, not on the seed
of a run: all runs of a search are compared on the same rows, which none of them has seen.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cowclip_merlin.errors import InputError
from cowclip_merlin.loading.columns import ColumnArrays
from cowclip_merlin.loading.row_order import row_numbers

SEED = 220406240  # of the draw; another one would compare new runs with old ones on other rows


def validation_rows(rows: int, fraction: float) -> int:
    """Number of rows that are kept back.

    Raises:
        InputError: none would be, or none would be left to train on.

    >>> validation_rows(1000, 0.1)
    100
    """
    held = round(rows * fraction)
    if not 0 < held < rows:
        raise InputError(
            f"validation_fraction {fraction:g} of {rows} train rows are {held}: rows are needed "
            "to validate on and to train on; use another fraction"
        )
    return held


def validation_mask(rows: int, fraction: float) -> npt.NDArray[np.bool_]:
    """Which of the train rows are kept back, bool [rows].

    The rows of a smaller fraction are among those of a larger one.

    Raises:
        InputError: as `validation_rows`.

    >>> validation_mask(5, 0.4).tolist()
    [False, True, False, True, False]
    """
    order = row_numbers(rows)
    np.random.default_rng(SEED).shuffle(order)
    held = np.zeros(rows, np.bool_)
    held[order[: validation_rows(rows, fraction)]] = True
    return held


def train_validation_split(
    columns: ColumnArrays, fraction: float
) -> tuple[ColumnArrays, ColumnArrays]:
    """Rows to train on and rows to validate on, in their order, both copied into host memory.

    Args:
        columns: the train split, in host memory or mapped from files.
        fraction: share of its rows to validate on, in (0, 1).

    Raises:
        InputError: a part has no rows, or one label only is among the rows to validate on.
    """
    held = validation_mask(len(columns), fraction)
    kept, validation = _select_rows(columns, ~held), _select_rows(columns, held)
    if len(np.unique(validation.label)) < 2:
        raise InputError(
            f"validation_fraction {fraction:g}: all {len(validation)} rows have the label "
            f"{validation.label[0]:g}, an AUC needs both; use a larger fraction"
        )
    return kept, validation


def _select_rows(columns: ColumnArrays, chosen: npt.NDArray[np.bool_]) -> ColumnArrays:
    return ColumnArrays(columns.ids[chosen], columns.continuous[chosen], columns.label[chosen])
