"""Compile the loops of this package with numba."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TypeVar, overload

from numba import njit

FOLDERS = ("kernels/loops", "tables", "online/events")
"""Where compiled functions may be, in the package."""

Loop = TypeVar("Loop", bound=Callable[..., object])


@overload
def compiled(function: Loop) -> Loop: ...
@overload
def compiled(*, parallel: bool = False) -> Callable[[Loop], Loop]: ...
def compiled(
    function: Loop | None = None, *, parallel: bool = False
) -> Loop | Callable[[Loop], Loop]:
    """Compile a function with numba, and cache the machine code on disk if possible.

    A change of any file in `FOLDERS` makes numba compile the functions of all files again, because
    they call each other. Divisions do not check for zero.

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
        found = njit(function, cache=True, **options)
    except RuntimeError:  # no folder for the cache is writable
        return njit(function, **options)
    if not hasattr(found, "_cache"):  # NUMBA_DISABLE_JIT
        return found
    # Numba itself compares only the function's own file, and would use old code of other files.
    file = found._cache._cache_file
    file._source_stamp = (file._source_stamp, _hash_of_sources())
    return found


@cache
def _hash_of_sources() -> str:
    """Return a hash of the folders with compiled functions, which have each other's code in them.

    And constants of each other: so all files count.
    """
    package = Path(__file__).parents[1]
    folders = [package / name for name in FOLDERS]
    files = [Path(__file__), *(file for each in folders for file in sorted(each.rglob("*.py")))]
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
