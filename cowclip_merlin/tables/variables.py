"""Variables of TensorFlow that are reserved at their capacity, and their memory in NumPy.

Such a variable takes address space, and Linux gives it memory page by page when rows are first
written. So a table grows in place: `tf.gather`, the optimizers and the models see an ordinary
variable, whose contents are undefined until they are written (`tf.raw_ops.Empty` reuses memory
below 32 MB). On a GPU the capacity is allocated at once.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.tables.initial_rows import RowMemory
from cowclip_merlin.tables.variable_memory import memory_tensor, separate_memory, writable_view
from cowclip_merlin.types import Array, DType, KerasOptimizer, Tensor, Variable

tf = compat.tensorflow()


def reserve(shape: Sequence[int], dtype: DType | None = None, **_: Any) -> Tensor:
    """An initializer for `add_weight` and `add_slot`: a tensor that is not written.

    Args:
        shape: of the tensor.
        dtype: float32 if it is None.

    Raises:
        InputError: the system refuses that much address space, or there are 2^31 rows or more.
    """
    shape, dtype = tf.TensorShape(shape).as_list(), dtype or tf.float32
    if max(shape) >= 1 << 31:  # the operation's shapes are int32
        raise InputError(f"capacity is {shape[0]:,}; give a number of rows below 2^31")
    try:
        _refuse_too_large(math.prod(shape) * dtype.size)
        return tf.raw_ops.Empty(shape=shape, dtype=dtype, init=False)
    except (tf.errors.ResourceExhaustedError, MemoryError):
        size = math.prod(shape) * dtype.size / 2**30
        raise InputError(
            f"cannot reserve {size:,.1f} GiB for a table of {shape[0]:,} rows: use a smaller "
            "capacity, or allow it by vm.overcommit_memory=1 (Linux refuses one table larger than "
            "memory under 0, and all tables together under 2)"
        ) from None


def _refuse_too_large(size: int) -> None:
    """Ask the system first: TensorFlow tries for ten seconds.

    Raises:
        MemoryError: the system refuses to reserve that many bytes.
    """
    try:
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError as error:
        raise MemoryError(str(error)) from None


def create_slots(optimizer: KerasOptimizer, variable: Variable, names: Sequence[str]) -> None:
    """Reserve what an optimizer keeps of a variable, before Keras would create and write it.

    Args:
        optimizer: a legacy Keras optimizer that has not seen the variable.
        variable: the table.
        names: of the slots, such as Adam's moments "m" and "v".

    Raises:
        InputError: the system refuses that much address space.
    """
    for name in names:
        optimizer.add_slot(variable, name, initializer=reserve)


def memory_of(variable: Variable) -> Array:
    """The memory of a variable on the CPU, writable, without a copy.

    It is the variable's memory only as long as the variable lives, nothing assigns it as a whole,
    and no tensor of all of it is alive during a lookup or a step. The variable must have memory of
    its own: not the same initial tensor as another one.

    Args:
        variable: a `tf.Variable`, not of size 0.

    Raises:
        InputError: it is in the memory of another device.
    """
    variable = compat.stored(variable)
    if tf.DeviceSpec.from_string(variable.device).device_type not in (None, "CPU"):
        raise InputError(f"table {variable.name!r} is on {variable.device}; create it on the CPU")
    separate_memory(variable)
    return writable_view(np.asarray(memoryview(memory_tensor(variable))))


def _refuse_moved(view: Array, variable: Variable) -> None:
    variable = compat.stored(variable)
    if np.asarray(memoryview(memory_tensor(variable))).ctypes.data != view.ctypes.data:
        raise InputError(
            f"table {variable.name!r} is no longer where new rows are written, since it was "
            "assigned, or a tensor of all of it was kept during a step or a lookup: create the "
            "model and its table again, and read rows by tf.gather only"
        )


def row_memory(
    variable: Variable,
    slots: Mapping[str, Variable] | None = None,
    *,
    start: float = 0.0,
    std: float,
    seed: int,
) -> RowMemory:
    """The memory of a table and of its slots for a `GrowingTable`.

    Args:
        variable: float32 [capacity, d].
        slots: name -> slot of the optimizer, from `create_slots`; None where nothing is trained.
        start: first value of the slots.
        std: standard deviation of a row's first values.
        seed: of the first values.
    """
    variables = {"w": variable, **(slots or {})}
    views = {name: memory_of(each) for name, each in variables.items()}

    def check() -> None:
        for name, view in views.items():
            _refuse_moved(view, variables[name])

    w, kept = views["w"], {name: view for name, view in views.items() if name != "w"}
    return RowMemory(w=w, slots=kept, start=start, std=std, seed=seed, check=check)
