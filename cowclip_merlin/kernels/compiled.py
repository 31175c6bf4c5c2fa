"""How numba compiles the loops of this package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(function: Callable[..., Any] | None = None, *, parallel: bool = False) -> Any:
    """Compile with numba; the machine code is kept on disk where a folder can be written.

    It is compiled again when the function's own file changes: after a change to a function that
    other files call, delete `__pycache__`. Divisions do not check for zero.

    Args:
        function: to compile; None returns a decorator.
        parallel: run the `prange` loops on numba's threads. Other Python threads wait meanwhile,
            since two of them must not use numba's threads at once; else they run.

    >>> @compiled
    ... def double(x):
    ...     return 2 * x
    >>> double(4)
    8
    """
    if function is None:
        return lambda each: compiled(each, parallel=parallel)
    options = {"parallel": parallel, "nogil": not parallel, "error_model": "numpy"}
    try:
        return njit(function, cache=True, **options)
    except RuntimeError:  # no folder for the cache
        return njit(function, **options)
