"""What `CowClip` asks of the code that updates its tables, and what a step reports of the clip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from cowclip_merlin import compat
from cowclip_merlin.kernels import UniqueRows
from cowclip_merlin.optimizer.exchange import add_replicated_weight
from cowclip_merlin.types import IndexedSlices, KerasOptimizer, Operation, Pair, Tensor, Variable

tf = compat.tensorflow()


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


def summarize(factors: list[Tensor]) -> tuple[Tensor, Tensor] | None:
    """Compute the share of clipped rows and the mean factor, scalars; None without tables.

    Args:
        factors: clip factors of the batch's rows, one tensor [u] per table.

    >>> [float(x) for x in summarize([tf.constant([1.0, 0.5]), tf.constant([1.0, 0.5])])]
    [0.5, 0.75]
    """
    if not factors:
        return None
    present = tf.concat([tf.cast(f, tf.float32) for f in factors], 0)
    total = tf.cast(tf.size(present), tf.float32)
    cut = tf.reduce_sum(tf.cast(present < 1, tf.float32))
    share = tf.math.divide_no_nan(cut, total)
    return share, tf.math.divide_no_nan(tf.reduce_sum(present), total)


class ClipStatistics:
    """Two scalar variables for logging, which checkpoints include.

    Args:
        add_weight: the optimizer's method `add_weight`.

    Attributes:
        share: share of the batch's distinct rows that the last step clipped.
        mean_factor: mean factor of the batch's distinct rows in the last step.
    """

    def __init__(self, add_weight: Callable[..., Variable]) -> None:
        self._add_weight = add_weight
        self.share: Variable | None = None
        self.mean_factor: Variable | None = None

    def create(self) -> None:
        """Create the variables, once."""
        if self.share is None:
            self.share = self._weight("clipped_share")
            self.mean_factor = self._weight("mean_clip_factor")

    def _weight(self, name: str) -> Variable:
        on_read = tf.VariableSynchronization.ON_READ
        add_weight = self._add_weight
        return add_replicated_weight(add_weight, name, [], tf.float32, synchronization=on_read)

    def record(self, summary: tuple[Tensor, Tensor] | None) -> None:
        """Store the result of `summarize` for the last step."""
        if summary is not None:
            self.share.assign(summary[0])
            self.mean_factor.assign(summary[1])
