"""Compile the loops of this package with numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, overload

from numba import njit

Loop = TypeVar("Loop", bound=Callable[..., object])


@overload
def compiled(function: Loop) -> Loop: ...
@overload
def compiled(*, parallel: bool = False) -> Callable[[Loop], Loop]: ...
def compiled(
    function: Loop | None = None, *, parallel: bool = False
) -> Loop | Callable[[Loop], Loop]:
    """Compile a function with numba, and cache the machine code on disk if possible.

    Numba compiles a function again only when the function's own file changes. After a change to a
    function that other files call, delete `__pycache__`. Divisions do not check for zero.

    Args:
        function: function to compile; None returns a decorator.
        parallel: run `prange` loops on numba's threads, and hold Python's global lock, because
            two Python threads must not use numba's threads at the same time. False releases it.

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
    except RuntimeError:  # no folder for the cache is writable
        return njit(function, **options)
