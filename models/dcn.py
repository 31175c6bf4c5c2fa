"""Deep & Cross Network (Wang et al., arXiv 1708.05123)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cowclip_merlin.checks import check_whole
from cowclip_merlin.errors import InputError
from cowclip_merlin.models.architecture import Architecture
from cowclip_merlin.models.base import ClickModel, assemble, tf
from cowclip_merlin.models.multi_task import side_by_side
from cowclip_merlin.types import JsonObject, Layer, Tensor, TensorShape, Variable

if TYPE_CHECKING:
    from merlin.schema import Schema

    from cowclip_merlin.models.columns import Columns
    from cowclip_merlin.models.ctr_model import CTRModel
    from cowclip_merlin.models.features import Features


class CrossLayers(tf.keras.layers.Layer):
    """A stack of `layers` cross layers on x0 [b, n]."""

    def __init__(self, layers: int, *, seed: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.layers, self.seed = layers, seed

    def _kernel(self, name: str, shape: list[int], index: int) -> Variable:
        he = tf.keras.initializers.HeNormal(seed=self.seed + index)
        return self.add_weight(name, shape, initializer=he)

    def _bias(self, layer: int, n: int) -> Variable:
        return self.add_weight(f"b_{layer}", [n], initializer="zeros")

    def get_config(self) -> JsonObject:
        """Arguments as plain values."""
        return super().get_config() | {"layers": self.layers, "seed": self.seed}


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class VectorCross(CrossLayers):
    """DCN: `x_(l+1) = x0 * (x_l . w_l) + b_l + x_l`."""

    def build(self, input_shape: TensorShape) -> None:
        """Create w and b of every layer."""
        n = int(input_shape[-1])
        self.w = [self._kernel(f"w_{i}", [n, 1], i) for i in range(self.layers)]
        self.b = [self._bias(i, n) for i in range(self.layers)]
        super().build(input_shape)

    def call(self, x0: Tensor) -> Tensor:
        """[b, n] -> [b, n]."""
        x = x0
        for w, b in zip(self.w, self.b):
            x = x0 * tf.matmul(x, w) + b + x
        return x


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class DCN(ClickModel):
    """`z = [cross, MLP] . w + bias`; in mode "all" plus the linear part.

    Args:
        columns: columns of the input.
        architecture: settings of the model.
        cross_layers: number of cross layers.
    """

    def __init__(
        self,
        columns: Columns | JsonObject,
        architecture: Architecture | JsonObject,
        *,
        cross_layers: int = 3,
        **kwargs: Any,
    ) -> None:
        super().__init__(columns, architecture, **kwargs)
        check_whole({"cross_layers": cross_layers})
        if cross_layers < 1:
            raise InputError(f"cross_layers is {cross_layers}; it must be at least 1")
        self.cross_layers = cross_layers
        self.cross = self.make_cross()
        if self.architecture.continuous == "all":
            self.add_linear()

    def make_cross(self) -> Layer:
        """Build the stack of cross layers."""
        return VectorCross(self.cross_layers, seed=self.architecture.seed + 100)

    def forward(self, features: Features) -> Tensor:
        """Compute the logits [b, T]; all targets share the cross layers."""
        everything = self.architecture.continuous == "all"
        crossed = self.cross(features.flat if everything else features.embeddings)
        z = self.logit(side_by_side(crossed, self.mlp(features.padded)))
        return z + self.linear(features) if everything else z

    def get_config(self) -> JsonObject:
        """Return the arguments as plain values."""
        return super().get_config() | {"cross_layers": self.cross_layers}


def dcn(schema: Schema, *, cross_layers: int = 3, **settings: Any) -> CTRModel:
    """Build DCN as a Merlin model.

    Args:
        schema: Merlin schema with a target and categorical columns with integer domains.
        cross_layers: number of cross layers.
        **settings: settings of `Architecture`.

    Raises:
        InputError: if the schema or a setting is wrong.
    """
    return assemble(DCN, schema, Architecture(**settings), cross_layers=cross_layers)
