"""How the loops of this package are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(function: Callable[..., Any]) -> Any:
    """Compile with numba; other Python threads run meanwhile.

    The machine code is kept on disk where a folder can be written. It is made again when the
    function's own file changes: after a change to a function that other files call, delete
    `__pycache__`. Divisions do not check for zero.

    >>> @compiled
    ... def double(x):
    ...     return 2 * x
    >>> double(4)
    8
    """
    options = {"nogil": True, "error_model": "numpy"}
    try:
        return njit(function, cache=True, **options)
    except RuntimeError:  # no folder for the cache
        return njit(function, **options)
