"""DeepFM (Guo et al., arXiv 1703.04247)."""

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
class DeepFM(ClickModel):
    """`z = sum of id weights + bias + 0.5 * sum_d((sum_f v)^2 - sum_f v^2) + MLP logit`.

    With several targets, each one has weights of the terms d, which are 1 at first: with the plain
    sum, the interactions would add the same to all logits.
    """

    second_order = True

    def __init__(
        self, columns: Columns | JsonObject, architecture: Architecture | JsonObject, **kwargs: Any
    ) -> None:
        super().__init__(columns, architecture, **kwargs)
        self.add_linear()
        targets = len(self.columns.targets)
        if targets > 1:
            self.fm = tf.keras.layers.Dense(
                targets, use_bias=False, kernel_initializer="ones", dtype="float32"
            )

    def forward(self, features: Features) -> Tensor:
        """Compute the logits [b, T]; FM and MLP read the same embeddings."""
        several = hasattr(self, "fm")
        pairs = self.fm(features.fm_factors) if several else features.second_order
        return self.linear(features) + pairs + self.mlp_logit(features)


def deepfm(schema: Schema, **settings: Any) -> CTRModel:
    """Build DeepFM as a Merlin model.

    Args:
        schema: Merlin schema with a target and categorical columns with integer domains.
        **settings: settings of `Architecture`.

    Raises:
        InputError: if the schema or a setting is wrong.
    """
    return assemble(DeepFM, schema, Architecture(**settings))
