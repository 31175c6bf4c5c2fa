"""Hold out train rows for validation, so that settings can be chosen without the test rows.

The held-out rows do not depend on a run's seed, only on the number of train rows, the fraction and
how they are chosen. So all runs of a search are compared on the same rows, and no run trains on
them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cowclip_merlin.errors import InputError
from cowclip_merlin.loading.column_arrays import ColumnArrays
from cowclip_merlin.loading.row_order import row_numbers

SEED = 220406240  # a change would compare new runs with old ones on different rows


def validation_rows(rows: int, fraction: float) -> int:
    """Return the number of held-out rows.

    Raises:
        InputError: if no rows would be held out, or no rows would be left to train on.

    >>> validation_rows(1000, 0.1)
    100
    """
    held = round(rows * fraction)
    if not 0 < held < rows:
        raise InputError(
            f"validation_fraction {fraction:g} of {rows} train rows holds out {held}; both splits "
            "need rows; use another fraction"
        )
    return held


def validation_mask(rows: int, fraction: float, how: str = "random") -> npt.NDArray[np.bool_]:
    """Return which train rows are held out, bool [rows].

    The rows of a smaller fraction are a subset of the rows of a larger one.

    Args:
        rows: number of train rows.
        fraction: share of them to hold out.
        how: "random", or "last", which holds out the last rows of the folder: the latest ones if
            the log is in order of time.

    Raises:
        InputError: as `validation_rows`.

    >>> validation_mask(5, 0.4).tolist()
    [False, True, False, True, False]
    >>> validation_mask(5, 0.4, "last").tolist()
    [False, False, False, True, True]
    """
    count, order = validation_rows(rows, fraction), row_numbers(rows)
    if how == "random":
        np.random.default_rng(SEED).shuffle(order)
    held = np.zeros(rows, np.bool_)
    held[order[:count] if how == "random" else order[-count:]] = True
    return held


def train_validation_split(
    columns: ColumnArrays, fraction: float, how: str = "random"
) -> tuple[ColumnArrays, ColumnArrays]:
    """Split the train rows into rows to train and to validate on, both copied.

    Args:
        columns: the train split, in host memory, mapped from files or on a GPU.
        fraction: share of its rows to validate on, in (0, 1).
        how: as for `validation_mask`.

    Raises:
        InputError: if a part has no rows or no weight above 0, or all validation rows have the
            same label. The labels [n, T] of other targets are not checked.
    """
    held = validation_mask(len(columns), fraction, how)
    kept, validation = columns.take(~held), columns.take(held)
    for name, part in (("training", kept), ("validation", validation)):
        if part.weight is not None and not part.weight.any():
            raise InputError(
                f"validation_fraction {fraction:g}: all weights of the {len(part)} {name} rows are "
                "0; use another fraction"
            )
    if validation.label.ndim == 1 and len(np.unique(validation.label)) < 2:
        raise InputError(
            f"validation_fraction {fraction:g}: all {len(validation)} rows have the label "
            f"{float(validation.label[0]):g}, but AUC needs both labels; use a larger fraction"
        )
    return kept, validation
