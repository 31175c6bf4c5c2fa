"""Deep & Cross Network (Wang et al., arXiv 1708.05123)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cowclip_merlin.errors import InputError
from cowclip_merlin.models.base import Architecture, ClickModel, assemble, tf
from cowclip_merlin.models.interaction import VectorCross
from cowclip_merlin.models.multi_task.layers import side_by_side
from cowclip_merlin.types import JsonObject, Layer, Tensor

if TYPE_CHECKING:
    from merlin.schema import Schema

    from cowclip_merlin.models.columns import Columns
    from cowclip_merlin.models.ctr_model import CTRModel


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
        if cross_layers < 1:
            raise InputError(f"cross_layers is {cross_layers}; it must be at least 1")
        self.cross_layers = cross_layers
        self.cross = self.make_cross()
        if self.architecture.continuous == "all":
            self.add_linear()

    def make_cross(self) -> Layer:
        """Build the stack of cross layers."""
        return VectorCross(self.cross_layers, seed=self.architecture.seed + 100)

    def forward(self, v: Tensor, wide: Tensor | None, x: Tensor) -> Tensor:
        """Compute the logits [b, T]; all targets share the cross layers."""
        crossed = self.cross(self.crossed(v, x))
        z = self.logit(side_by_side(crossed, self.mlp(v, x)))
        return z + self.linear(wide, x) if self.architecture.continuous == "all" else z

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
