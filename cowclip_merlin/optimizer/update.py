"""What `CowClip` asks of the code that updates its embedding tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from cowclip_merlin.kernels import UniqueRows
from cowclip_merlin.types import IndexedSlices, KerasOptimizer, Operation, Pair, Tensor, Variable

Summary: TypeAlias = "tuple[Tensor, Tensor] | None"
"""Share of clipped rows and mean factor, scalars; None if no table is clipped."""


class Update(Protocol):
    """Makes the steps of the tables: `KerasUpdate` by table, or `RowUpdate` by row."""

    def apply(self, pairs: Sequence[Pair]) -> tuple[list[Tensor], Summary]:
        """Make one step of all tables.

        Args:
            pairs: `tf.IndexedSlices` with one entry per occurrence, or `CountedSlices`, and table.

        Returns:
            Tensors to wait for the step; share of clipped rows and mean factor.
        """
        ...

    def apply_dense(self, optimizer: KerasOptimizer, pairs: Sequence[Pair]) -> Operation:
        """Make one step of the dense weights, after that of the tables.

        Args:
            optimizer: the dense optimizer.
            pairs: gradient, summed over replicas, and variable.
        """
        ...

    def sum_rows(self, slices: IndexedSlices) -> UniqueRows:
        """Sum the gradients of equal ids and count them, without a check; see `sum_duplicates`."""
        ...

    def create_state(self, tables: Sequence[Variable]) -> None:
        """Create state of tables in addition to the embedding optimizer's slots, which exist."""
        ...

    def flush(self, steps_made: Callable[[], int]) -> None:
        """Bring all rows of all tables up to date.

        Args:
            steps_made: returns the optimizer's steps, including those of a restored checkpoint.
        """
        ...
