"""Prefetch memory into the processor's cache, for which Numba has no function.

The rows of a batch are scattered over a large table, so each access would wait for memory. A
prefetch is only a hint: it changes no value and cannot fail, whatever the address.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from cowclip_merlin.types import Array

if TYPE_CHECKING:
    from numba.core.base import BaseContext
    from numba.core.typing.context import Context
    from numba.core.typing.templates import Signature

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
