"""Wide & Deep (Cheng et al., arXiv 1606.07792)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cowclip_merlin.models.architecture import Architecture
from cowclip_merlin.models.base import ClickModel, assemble, tf
from cowclip_merlin.types import JsonObject, Tensor

if TYPE_CHECKING:
    from merlin.schema import Schema

    from cowclip_merlin.models.columns import Columns
    from cowclip_merlin.models.ctr_model import CTRModel
    from cowclip_merlin.models.features import Features


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class WideAndDeep(ClickModel):
    """`z = sum of id weights + bias + MLP logit`."""

    def __init__(
        self, columns: Columns | JsonObject, architecture: Architecture | JsonObject, **kwargs: Any
    ) -> None:
        super().__init__(columns, architecture, **kwargs)
        self.add_linear()

    def forward(self, features: Features) -> Tensor:
        """Compute the logits [b, T]; the last dense layer has the bias."""
        return self.linear(features) + self.mlp_logit(features)


def wide_and_deep(schema: Schema, **settings: Any) -> CTRModel:
    """Build W&D as a Merlin model.

    Args:
        schema: Merlin schema with a target and categorical columns with integer domains.
        **settings: settings of `Architecture`.

    Raises:
        InputError: if the schema or a setting is wrong.
    """
    return assemble(WideAndDeep, schema, Architecture(**settings))
