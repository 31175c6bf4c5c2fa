"""Hidden layers `relu(x W + b)` as one operation forward and one backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cowclip_merlin import compat
from cowclip_merlin.types import DType, Tensor

tf = compat.tensorflow()


@dataclass(frozen=True)
class Engine:
    """What computes hidden layers on a device.

    Attributes:
        module: TensorFlow's module of the loaded operations.
        number: number of the engine in the operations.
        device: device on which it computes, such as "GPU:0".
    """

    module: Any
    number: int
    device: str


def hidden_layers(
    x: Tensor,
    kernels: Sequence[Tensor],
    biases: Sequence[Tensor],
    *,
    engine: Engine,
    dtype: DType,
    output: Tensor | None = None,
) -> Tensor:
    """Apply dense layers with ReLU, one after the other.

    As Keras with mixed precision, it rounds kernels, biases and activations to `dtype` and sums
    products in float32. A bias is added before the rounding.

    Args:
        x: input [b, k], float32 or bfloat16. It may have more columns than the first kernel has
            rows: they must be finite, and count for nothing.
        kernels: float32 [k, n] of each layer.
        biases: float32 [n] of each layer.
        engine: what computes.
        dtype: type of the products and activations, float32 or bfloat16. If TensorFlow allows TF32,
            products of float32 use it.
        output: kernel [n, 1], float32, of a layer of one output without bias that follows; None
            without one. It reads the activations of the last layer without a copy in float32.

    Returns:
        The last layer's activations [b, n] in `dtype`, or with `output` its products [b, 1] in
        float32. Their gradient reaches x, kernels, biases and `output`.
    """
    count = len(kernels)
    widths = [int(kernels[0].shape[0]), *(int(kernel.shape[1]) for kernel in kernels)]
    common = {
        "engine": engine.number,
        "tf32": tf.config.experimental.tensor_float_32_execution_enabled(),
    }

    @tf.custom_gradient
    def apply(x: Tensor, *weights: Tensor) -> tuple[Tensor, Callable[..., Any]]:
        made = engine.module.cow_clip_mlp(
            x=x,
            kernels=weights[:count],
            biases=weights[count : 2 * count],
            output=weights[2 * count :],
            T=dtype,
            M=count + 1,
            **common,
        )
        result = made.result if output is None else made.products[0]
        result.set_shape([x.shape[0], widths[-1] if output is None else 1])

        def gradient(of_result: Tensor) -> list[Tensor]:
            with tf.device(engine.device):  # a tape runs this outside of `apply`'s scope
                found = engine.module.cow_clip_mlp_gradient(
                    gradient=[of_result] if output is None else [],
                    output=weights[2 * count :],
                    of_output=[] if output is None else [of_result],
                    activations=made.activations,
                    masks=made.masks,
                    weights=made.weights,
                    columns=int(x.shape[1]),
                    widths=widths,
                    X=x.dtype,
                    **common,
                )
            gradients = [found.dx, *found.dkernels, *found.dbiases, *found.doutput]
            for each, like in zip(gradients, (x, *weights)):
                each.set_shape(like.shape)
            return gradients

        return result, gradient

    with tf.device(engine.device):
        return apply(x, *kernels, *biases, *([] if output is None else [output]))
