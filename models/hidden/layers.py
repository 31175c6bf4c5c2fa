"""Apply hidden layers: as one operation if that gives what Keras's layers give, else by Keras."""

from __future__ import annotations

from collections.abc import Sequence

from cowclip_merlin import compat
from cowclip_merlin.models.hidden import engine as engines
from cowclip_merlin.models.hidden.fused import hidden_layers
from cowclip_merlin.types import DType, Layer, Tensor

tf = compat.tensorflow()
mm = compat.merlin_models()
_TYPES = {"float32": tf.float32, "mixed_bfloat16": tf.bfloat16}


def applied(layers: Sequence[Layer], h: Tensor, *, fused: bool) -> Tensor:
    """Apply hidden layers one after the other.

    Args:
        layers: Merlin's `MLPBlock` of one layer each.
        h: input, [b, k]. Columns that the first layer does not know are 0.
        fused: whether they may be one operation. They are if they are dense layers with bias and
            ReLU, in float32 or mixed bfloat16, on a GPU and without replicas.

    Returns:
        What the last layer gives, [b, n].
    """
    dense = [_plain_dense(layer) for layer in layers]
    if fused and None not in dense and (dtype := _common_type(dense, h)) is not None:
        gpu = engines.gpu_of(dense[0].kernel)
        engine = None if gpu is None else engines.engine_for(gpu, dtype)
        if engine is not None:
            # Outside of its layer, Keras reads a kernel in float32.
            kernels = [tf.convert_to_tensor(layer.kernel) for layer in dense]
            biases = [tf.convert_to_tensor(layer.bias) for layer in dense]
            return hidden_layers(h, kernels, biases, engine=engine, dtype=dtype)
    return _by_keras(layers, h)


def _by_keras(layers: Sequence[Layer], h: Tensor) -> Tensor:
    dense = layers[0].layers[0].dense
    if dense.built and (more := h.shape[1] - dense.kernel.shape[0]):
        kernel = tf.pad(tf.cast(dense.kernel, h.dtype), [[0, more], [0, 0]])
        h = dense.activation(tf.matmul(h, kernel) + tf.cast(dense.bias, h.dtype))
        layers = layers[1:]
    for layer in layers:
        h = layer(h)
    return h


def _plain_dense(block: Layer) -> Layer | None:
    """Return the Dense layer of a block; None if it is not built, or does anything besides."""
    inner = block.layers if type(block) is mm.SequentialBlock else []
    dense = getattr(inner[0], "dense", None) if len(inner) == 1 else None
    plain = (
        type(dense) is tf.keras.layers.Dense
        and dense.built
        and dense.use_bias
        and dense.activation is tf.keras.activations.relu
        and dense.activity_regularizer is None
    )
    return dense if plain else None


def _common_type(dense: Sequence[Layer], h: Tensor) -> DType | None:
    """Return the type in which all layers compute; None if the operation does not compute in it."""
    (policy, *others) = {layer.dtype_policy.name for layer in dense}
    fits = h.dtype in (tf.float32, tf.bfloat16) and h.shape.rank == 2 and h.shape[1] is not None
    fits = fits and not others and not tf.distribute.has_strategy()
    return _TYPES.get(policy) if fits else None
