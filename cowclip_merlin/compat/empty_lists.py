"""Lists in the frames of Merlin: their type if all are empty."""

from __future__ import annotations

import importlib
from functools import wraps
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd


def know_types_of_empty_lists() -> None:
    """Give Merlin the type of the first list's array if no list has a value.

    Merlin looks at the first value. In a first partition without one it finds no type, and the fit
    of a workflow ends with an error.
    """
    dispatch = importlib.import_module("merlin.core.dispatch")
    by_value = dispatch.list_val_dtype

    @wraps(by_value)
    def by_value_or_array(column: pd.Series) -> np.dtype | None:
        found = by_value(column)
        if found is None and len(column) and dispatch.is_list_dtype(column):
            return getattr(column.iloc[0], "dtype", None)
        return found

    for name in ("merlin.dag.executors", "merlin.io.dataset"):
        importlib.import_module(name).list_val_dtype = by_value_or_array
