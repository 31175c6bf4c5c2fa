"""DCN V2 (Wang et al., arXiv 2008.13535), with cross layers and MLP in parallel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cowclip_merlin.errors import InputError
from cowclip_merlin.models.base import Architecture, assemble, tf
from cowclip_merlin.models.dcn import DCN
from cowclip_merlin.models.interaction import LowRankCross, MatrixCross
from cowclip_merlin.types import JsonObject, Layer

if TYPE_CHECKING:
    from merlin.schema import Schema

    from cowclip_merlin.models.columns import Columns
    from cowclip_merlin.models.ctr_model import CTRModel


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
