"""Compile the loops of this package with numba, and prefetch what they read.

Numba has no function that prefetches memory into the processor's cache. The rows of a batch are
scattered over a large table, so each access would wait for memory. A prefetch is only a hint: it
changes no value and cannot fail, whatever the address.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, overload

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from cowclip_merlin.types import Array

if TYPE_CHECKING:
    from numba.core.base import BaseContext
    from numba.core.typing.context import Context
    from numba.core.typing.templates import Signature


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


AHEAD = 8  # rows ahead: more are evicted before their use, fewer arrive too late


@intrinsic
def prefetch(
    typingctx: Context, array: types.Type, index: types.Type
) -> tuple[Signature, Callable[..., ir.Value]]:
    """Bring the line of `array.flat[index]` into the cache; the array must be contiguous."""

    def generate(
        context: BaseContext,
        builder: ir.IRBuilder,
        signature: Signature,
        arguments: Sequence[ir.Value],
    ) -> ir.Value:
        memory = context.make_array(signature.args[0])(context, builder, arguments[0])
        address = builder.gep(memory.data, [arguments[1]])
        address = builder.bitcast(address, ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [address.type], kind)
        # For writing, kept in all cache levels, data cache.
        builder.call(function, [address, number(1), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, index), generate


@njit(error_model="numpy")
def prefetch_row(x: Array, row: int) -> None:
    """Prefetch both ends of a row, because it may span two cache lines."""
    first = np.int64(row) * x.shape[1]
    prefetch(x, first)
    prefetch(x, first + x.shape[1] - 1)
