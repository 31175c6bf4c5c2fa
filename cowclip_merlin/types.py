"""Types that many components name in annotations: arrays, tensors, and values for JSON.

TensorFlow has no type stubs, and takes seconds to load. So each type is a text, which only type
checkers resolve, and this module loads neither TensorFlow nor NumPy.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa
    import tensorflow as tf

Array: TypeAlias = "npt.NDArray[Any]"
"""A NumPy array, or a CuPy array of the same interface; the docstring names its dtype."""

Floats: TypeAlias = "npt.NDArray[np.float64]"
Integers: TypeAlias = "npt.NDArray[np.int64]"

ArrowColumn: TypeAlias = "pa.Array | pa.ChunkedArray"
"""A column of an Arrow batch or table."""

Tensor: TypeAlias = "tf.Tensor"
TensorSpec: TypeAlias = "tf.TensorSpec"
TensorShape: TypeAlias = "tf.TensorShape"
RaggedTensor: TypeAlias = "tf.RaggedTensor"
SparseTensor: TypeAlias = "tf.SparseTensor"
DType: TypeAlias = "tf.DType"
HashTable: TypeAlias = "tf.lookup.experimental.MutableHashTable"
Function: TypeAlias = "tf.types.experimental.PolymorphicFunction"
"""What `tf.function` returns."""

Operation: TypeAlias = "tf.Operation"
Variable: TypeAlias = "tf.Variable"
IndexedSlices: TypeAlias = "tf.IndexedSlices"

ArrayOrTensor: TypeAlias = "Array | Tensor"
"""NumPy arrays on the host, tensors within a step."""

Gradient: TypeAlias = "Tensor | IndexedSlices"
"""The gradient of a variable: that of an embedding table has only the rows of a batch."""

Strategy: TypeAlias = "tf.distribute.Strategy"

Pair: TypeAlias = "tuple[Gradient, Variable]"
"""What an optimizer gets for a variable; the gradient of a table is sparse."""

VariableRef: TypeAlias = Hashable
"""`tf.Variable.ref()`: the key of a variable in a dictionary."""

Layer: TypeAlias = "tf.keras.layers.Layer"
Initializer: TypeAlias = "tf.keras.initializers.Initializer"
KerasModel: TypeAlias = "tf.keras.Model"
KerasOptimizer: TypeAlias = "tf.keras.optimizers.legacy.Optimizer"
LearningRateSchedule: TypeAlias = "tf.keras.optimizers.schedules.LearningRateSchedule"

Json: TypeAlias = Any
"""A value of a JSON file: a number, a text, true, false, null, a list or an object."""

JsonObject: TypeAlias = dict[str, Any]
"""An object of a JSON file, or the arguments of a Keras layer as plain values."""
