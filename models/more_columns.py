"""Dense weights of a model that has got more columns since they were saved.

The new columns are the last ones of their kind. A weight that reads them is 0 at first, so a model
predicts what it predicted before. The gradients of these weights are not 0: those of the first
layer, for example, are products of the new inputs and of what the layer's outputs need.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.models.din import histories
from cowclip_merlin.types import Array, Layer, Variable

if TYPE_CHECKING:
    from cowclip_merlin.models.base import ClickModel
    from cowclip_merlin.models.ctr_model import CTRModel


@dataclass(frozen=True, kw_only=True)
class MoreColumns:
    """How many columns are new.

    Attributes:
        categorical: the last so many categorical columns.
        continuous: the last so many continuous columns of one number; vectors come after them.
    """

    categorical: int = 0
    continuous: int = 0


@dataclass(frozen=True, kw_only=True)
class GrownWeight:
    """How a dense weight of a model comes from the one that was saved.

    Attributes:
        is_new: whether none was saved, since the layer has had no inputs, or has not been there.
        places: along an axis that reads the columns, the saved places before which zeros come.
    """

    is_new: bool = False
    places: tuple[int, ...] = ()

    def of(self, saved: Array, shape: Sequence[int]) -> Array:
        """Return the weight in its new shape.

        Args:
            saved: the weight, or a moment of it.
            shape: of the model's weight.

        Raises:
            InputError: the saved one is of another model.

        >>> GrownWeight(places=(1, 1)).of(np.array([[3.0], [4.0]]), [4, 1]).ravel().tolist()
        [3.0, 0.0, 0.0, 4.0]
        """
        grown = saved
        for axis, (old, new) in enumerate(zip(saved.shape, shape)):
            if old != new and old >= max(self.places, default=old + 1):
                grown = np.insert(grown, self.places, 0, axis=axis)
        if grown.shape != tuple(shape):
            raise InputError(
                f"a saved weight has the shape {list(saved.shape)}, this model's {list(shape)}; "
                "it is of another model"
            )
        return grown


def grown_weights(
    model: CTRModel, variables: Sequence[Variable], more: MoreColumns
) -> list[GrownWeight]:
    """Return how each dense weight of a model comes from those of the model with fewer columns.

    Args:
        model: one of the five models, with all columns.
        variables: its dense weights.
        more: the columns that the saved model does not have.

    Raises:
        InputError: a new column makes another column a history of `din`.
    """
    block = model.blocks[0]
    found = {
        id(compat.stored(variable)): weight
        for layer, weight in _growing_layers(block, more)
        for variable in layer.trainable_variables
    }
    return [found.get(id(compat.stored(variable)), GrownWeight()) for variable in variables]


def _growing_layers(block: ClickModel, more: MoreColumns) -> Iterator[tuple[Layer, GrownWeight]]:
    """Yield the layers whose inputs have the columns side by side, and layers that are new."""
    columns, dim = block.columns, block.architecture.embedding_dim
    fields = len(columns.fields) - more.categorical
    numbers = len(columns.continuous) - len(columns.vectors) - more.continuous  # vectors follow
    embeddings = (fields * dim,) * (more.categorical * dim)
    both = GrownWeight(places=embeddings + (fields * dim + numbers,) * more.continuous)
    for hidden in getattr(block, "towers", None) or [block.hidden]:
        yield hidden[0], both
    if hasattr(block, "gates"):
        yield block.gates, both
    if hasattr(block, "wide_dense"):
        is_new = not numbers and not columns.vectors
        yield block.wide_dense, GrownWeight(is_new=is_new, places=(numbers,) * more.continuous)
    if hasattr(block, "cross"):
        reads_all = block.architecture.continuous == "all"
        for layer in (block.cross, block.logit):
            yield layer, both if reads_all else GrownWeight(places=embeddings)
    if hasattr(block, "units"):
        for unit in block.units[_known_histories(block, fields) :]:
            yield unit, GrownWeight(is_new=True)


def _known_histories(block: ClickModel, fields: int) -> int:
    """Return the number of histories without the new columns.

    Raises:
        InputError: a column that was there has become a history.
    """
    pairs = histories(block.columns)
    if any(history < fields <= target for history, target in pairs):
        raise InputError(
            "model din: a new column makes a column that was there a history; give the new column "
            "a table of its own, or use a new run"
        )
    return sum(history < fields for history, _ in pairs)
