"""Wide & Deep (Cheng et al., arXiv 1606.07792)."""

from __future__ import annotations

from typing import Any

from cowclip_merlin.models.base import Architecture, ClickModel, assemble, tf


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class WideAndDeep(ClickModel):
    """`z = sum of id weights + bias + MLP logit`."""

    def __init__(self, columns: Any, architecture: Any, **kwargs: Any) -> None:
        super().__init__(columns, architecture, **kwargs)
        self.add_linear()

    def forward(self, v: Any, wide: Any, x: Any) -> Any:
        """Compute the logit [b, 1]; the last dense layer has the bias."""
        return self.linear(wide, x) + self.logit(self.mlp(v, x))


def wide_and_deep(schema: Any, **settings: Any) -> Any:
    """Build W&D as a Merlin model.

    Args:
        schema: Merlin schema with a target and categorical columns with integer domains.
        **settings: settings of `Architecture`.

    Raises:
        InputError: if the schema or a setting is wrong.
    """
    return assemble(WideAndDeep, schema, Architecture(**settings))
