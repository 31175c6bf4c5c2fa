"""Asking the processor for memory before it is needed, which numba has no words for.

Rows of a large table lie anywhere, so each would be waited for. A prefetch only hints: it
changes no value and cannot fail, whatever the address.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

AHEAD = 8  # rows: more are evicted again before their turn, fewer are waited for


@intrinsic
def prefetch(typingctx: Any, array: Any, index: Any) -> Any:
    """Bring the line of `array.flat[index]` into the cache; the array must be contiguous."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        memory = context.make_array(signature.args[0])(context, builder, arguments[0])
        address = builder.gep(memory.data, [arguments[1]])
        address = builder.bitcast(address, ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [address.type], kind)
        # To be written, to be kept in all levels, data.
        builder.call(function, [address, number(1), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, index), generate


@njit(error_model="numpy")
def prefetch_row(x: Any, row: int) -> None:
    """Both ends of a row: it may lie across two lines."""
    first = np.int64(row) * x.shape[1]
    prefetch(x, first)
    prefetch(x, first + x.shape[1] - 1)
