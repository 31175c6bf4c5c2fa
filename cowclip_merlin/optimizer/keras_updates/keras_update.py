"""Update the embedding tables with the Keras embedding optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from cowclip_merlin import choices, compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.optimizer.clip_statistics import summarize
from cowclip_merlin.optimizer.config import Config
from cowclip_merlin.optimizer.embedding_tables import EmbeddingTables
from cowclip_merlin.optimizer.exchange.replica import apply_locally
from cowclip_merlin.optimizer.keras_updates.clipped_gradients import clipped
from cowclip_merlin.optimizer.keras_updates.clippy import bounded_step
from cowclip_merlin.optimizer.unique_rows import UniqueRows, sum_duplicates
from cowclip_merlin.optimizer.update import Summary
from cowclip_merlin.types import IndexedSlices, KerasOptimizer, Operation, Pair, Tensor, Variable

tf = compat.tensorflow()


class KerasUpdate:
    """An `Update` by the Keras optimizer, with clipped gradients or (Clippy) clipped steps.

    Rows are always up to date.

    Args:
        config: settings of the steps.
        tables: the embedding tables.
        optimizer: the embedding optimizer.
    """

    def __init__(
        self, *, config: Config, tables: EmbeddingTables, optimizer: KerasOptimizer
    ) -> None:
        self.config, self.tables, self.optimizer = config, tables, optimizer

    def apply(self, pairs: Sequence[Pair]) -> tuple[list[Tensor], Summary]:
        """Make one step of all tables; see `Update.apply`."""
        arguments = pairs, self.config, self.tables.clips(pairs), self.tables.layout_of
        if choices.CLIPS[self.config.clip].acts_on == "update":
            steps = factors = bounded_step(*arguments, partial(apply_locally, self.optimizer))
        else:
            gradients, factors = clipped(*arguments)
            steps = [apply_locally(self.optimizer, gradients)]
        return steps, summarize(factors)

    def apply_dense(self, optimizer: KerasOptimizer, pairs: Sequence[Pair]) -> Operation:
        """Make one step of the dense weights; see `Update.apply_dense`."""
        return apply_locally(optimizer, pairs)

    def sum_rows(self, slices: IndexedSlices) -> UniqueRows:
        """Sum the gradients of equal ids and count them, without a check; see `sum_duplicates`."""
        return sum_duplicates(slices)

    def create_state(self, tables: Sequence[Variable]) -> None:
        """Check the tables; they have no state but the optimizer's slots.

        Raises:
            InputError: if TensorFlow's dense Adam cannot count the numbers of a table.
        """
        if self.config.update == "dense" and isinstance(
            self.optimizer, tf.keras.optimizers.legacy.Adam
        ):
            for table in tables:
                _refuse_large(table)

    def flush(self, steps_made: Callable[[], int]) -> None:
        """Do nothing: all rows are up to date."""


def _refuse_large(table: Variable) -> None:
    """Refuse a table on a GPU of which TensorFlow's Adam counts the numbers in int32."""
    on_gpu = tf.DeviceSpec.from_string(table.device).device_type == "GPU"
    if on_gpu and table.shape.num_elements() >= 1 << 31:
        raise InputError(
            f"table {table.name!r} has {table.shape.num_elements():,} numbers, but TensorFlow's "
            'dense Adam on a GPU can count fewer than 2^31: use update="exact", or '
            'backend="cupy"'
        )
