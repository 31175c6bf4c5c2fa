"""An embedding layer of Keras 3 for `update="exact"`."""

from __future__ import annotations

import keras

from cowclip_merlin import compat
from cowclip_merlin.keras3.tables import watch
from cowclip_merlin.types import Tensor

tf = compat.any_tensorflow()


@keras.saving.register_keras_serializable(package="cowclip_merlin.keras3")
class Embedding(keras.layers.Embedding):
    """`keras.layers.Embedding` whose rows are brought up to date before they are read.

    Lookups get the steps that their rows have missed under `update="exact"`, in training and in
    inference. All other reads get those of all rows: `get_weights`, `save`, `embeddings`. With
    other optimizers the layer is that of Keras, but for negative ids, which it refuses.

    Example:
        >>> import numpy as np
        >>> layer = Embedding(10, 4)
        >>> layer(np.array([[3, 7, 3]])).shape
        TensorShape([1, 3, 4])
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.supports_jit = False  # XLA calls no function of the host

    def call(self, inputs: Tensor) -> Tensor:
        """Look up ids.

        Args:
            inputs: integer [...], or ragged.

        Returns:
            Rows, [..., output_dim], of the layer's compute dtype.
        """
        table = self._embeddings.value
        plain = hasattr(table, "_read_variable_op") and not isinstance(inputs, tf.SparseTensor)
        if not plain or self.lora_enabled or self.quantization_mode:
            return super().call(inputs)
        watch(table)
        ids = inputs if inputs.dtype in (tf.int32, tf.int64) else tf.cast(inputs, tf.int32)
        return tf.cast(tf.nn.embedding_lookup(table, ids), self.compute_dtype)
