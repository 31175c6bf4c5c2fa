"""DCN V2 (Wang et al., arXiv 2008.13535), with cross layers and MLP in parallel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cowclip_merlin.checks import check_whole
from cowclip_merlin.errors import InputError
from cowclip_merlin.models.architecture import Architecture
from cowclip_merlin.models.base import assemble, tf
from cowclip_merlin.models.dcn import DCN, CrossLayers
from cowclip_merlin.types import JsonObject, Layer, Tensor, TensorShape, Variable

if TYPE_CHECKING:
    from merlin.schema import Schema

    from cowclip_merlin.models.columns import Columns
    from cowclip_merlin.models.ctr_model import CTRModel


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class MatrixCross(CrossLayers):
    """DCNv2: `x_(l+1) = x0 * (W_l x_l + b_l) + x_l`."""

    def build(self, input_shape: TensorShape) -> None:
        """Create W and b of every layer."""
        n = int(input_shape[-1])
        self.w = [self._kernel(f"w_{i}", [n, n], i) for i in range(self.layers)]
        self.b = [self._bias(i, n) for i in range(self.layers)]
        super().build(input_shape)

    def call(self, x0: Tensor) -> Tensor:
        """[b, n] -> [b, n]."""
        x = x0
        for w, b in zip(self.w, self.b):
            x = x0 * (tf.matmul(x, w) + b) + x
        return x


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class LowRankCross(CrossLayers):
    """DCNv2 with a mixture of low-rank experts (arXiv 2008.13535, section 3.3).

    `x_(l+1) = sum_i G_i(x_l) * x0 * (U_i tanh(C_i tanh(V_i^T x_l)) + b_l) + x_l`. G is a softmax
    over the experts' linear gates, which all layers share.
    """

    def __init__(self, layers: int, *, rank: int, experts: int, seed: int, **kwargs: Any) -> None:
        super().__init__(layers, seed=seed, **kwargs)
        self.rank, self.experts = rank, experts

    def build(self, input_shape: TensorShape) -> None:
        """Create U, C, V and b of every layer, and the gates."""
        n, r, e = int(input_shape[-1]), self.rank, self.experts
        shapes = {"u": [e, n, r], "c": [e, r, r], "v": [e, n, r]}
        self.factors = [
            {
                name: self._stacked(f"{name}_{i}", shape, 3 * i + k)
                for k, (name, shape) in enumerate(shapes.items())
            }
            for i in range(self.layers)
        ]
        self.b = [self._bias(i, n) for i in range(self.layers)]
        self.gate = self._kernel("gate", [n, e], 3 * self.layers)
        super().build(input_shape)

    def _stacked(self, name: str, shape: list[int], index: int) -> Variable:
        """Create one kernel per expert, initialized with the fan-in of its product."""
        fan_in = shape[2] if name.startswith("u") else shape[1]
        std = (2.0 / fan_in) ** 0.5
        normal = tf.keras.initializers.TruncatedNormal(
            stddev=std / 0.87962566103423978, seed=self.seed + index
        )
        return self.add_weight(name, shape, initializer=normal)

    def call(self, x0: Tensor) -> Tensor:
        """[b, n] -> [b, n]."""
        x = x0
        for factor, b in zip(self.factors, self.b):
            low = tf.tanh(tf.einsum("bn,enr->ber", x, factor["v"]))
            low = tf.tanh(tf.einsum("ber,eqr->beq", low, factor["c"]))
            experts = tf.einsum("ber,enr->ben", low, factor["u"]) + b
            gates = tf.nn.softmax(tf.matmul(x, self.gate))
            x = x0 * tf.einsum("be,ben->bn", gates, experts) + x
        return x

    def get_config(self) -> JsonObject:
        """Arguments as plain values."""
        return super().get_config() | {"rank": self.rank, "experts": self.experts}


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class DCNv2(DCN):
    """DCN with a full matrix in each cross layer, or with a mixture of low-rank experts.

    Args:
        columns: columns of the input.
        architecture: settings of the model.
        cross_layers: number of cross layers.
        low_rank: rank of the experts; None for full matrices.
        experts: number of experts.
    """

    def __init__(
        self,
        columns: Columns | JsonObject,
        architecture: Architecture | JsonObject,
        *,
        cross_layers: int = 3,
        low_rank: int | None = None,
        experts: int = 4,
        **kwargs: Any,
    ) -> None:
        check_whole({"low_rank": low_rank, "experts": experts})
        if low_rank is not None and (low_rank < 1 or experts < 1):
            raise InputError(f"low_rank {low_rank}, experts {experts}: both must be at least 1")
        self._low_rank, self._experts = low_rank, experts
        super().__init__(columns, architecture, cross_layers=cross_layers, **kwargs)

    def make_cross(self) -> Layer:
        """Build the stack of cross layers."""
        seed = self.architecture.seed + 100
        if self._low_rank is None:
            return MatrixCross(self.cross_layers, seed=seed)
        return LowRankCross(
            self.cross_layers, rank=self._low_rank, experts=self._experts, seed=seed
        )

    def get_config(self) -> JsonObject:
        """Return the arguments as plain values."""
        return super().get_config() | {"low_rank": self._low_rank, "experts": self._experts}


def dcnv2(
    schema: Schema,
    *,
    cross_layers: int = 3,
    low_rank: int | None = None,
    experts: int = 4,
    **settings: Any,
) -> CTRModel:
    """Build DCNv2 as a Merlin model.

    Args:
        schema: Merlin schema with a target and categorical columns with integer domains.
        cross_layers: number of cross layers.
        low_rank: rank of the experts of a low-rank mixture; None for full matrices.
        experts: number of experts, if `low_rank` is given.
        **settings: settings of `Architecture`.

    Raises:
        InputError: if the schema or a setting is wrong.
    """
    more = {"cross_layers": cross_layers, "low_rank": low_rank, "experts": experts}
    return assemble(DCNv2, schema, Architecture(**settings), **more)
