"""Update the embedding tables with the Keras embedding optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from cowclip_merlin import choices, compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.optimizer.clip_statistics import summarize
from cowclip_merlin.optimizer.clipped_gradients import clipped
from cowclip_merlin.optimizer.clippy import bounded_step
from cowclip_merlin.optimizer.config import Config
from cowclip_merlin.optimizer.embedding_tables import EmbeddingTables
from cowclip_merlin.optimizer.exchange.replica import apply_locally
from cowclip_merlin.optimizer.unique_rows import UniqueRows, sum_duplicates

tf = compat.tensorflow()

Summary = tuple[Any, Any] | None  # result of `clip_statistics.summarize`


class TableUpdate:
    """Updates tables with the Keras optimizer, with clipped gradients or (Clippy) clipped steps.

    The subclass `RowUpdate` updates single rows instead. In this class, rows are always up to date.

    Args:
        config: settings of the steps.
        tables: the embedding tables.
        optimizer: the embedding optimizer.
    """

    def __init__(self, *, config: Config, tables: EmbeddingTables, optimizer: Any) -> None:
        self.config, self.tables, self.optimizer = config, tables, optimizer

    def apply(self, pairs: Sequence[tuple[Any, Any]]) -> tuple[list[Any], Summary]:
        """Make one step of all tables.

        Args:
            pairs: `tf.IndexedSlices` with one entry per occurrence, and table.

        Returns:
            Tensors to wait for the step; share of clipped rows and mean factor, or None if no
            table is clipped.
        """
        arguments = pairs, self.config, self.clips(pairs), self.tables.layout_of
        if choices.CLIPS[self.config.clip].acts_on == "update":
            steps = factors = bounded_step(*arguments, partial(apply_locally, self.optimizer))
        else:
            gradients, factors = clipped(*arguments)
            steps = [apply_locally(self.optimizer, gradients)]
        return steps, summarize(factors)

    def clips(self, pairs: Sequence[tuple[Any, Any]]) -> list[bool]:
        """Return for each pair whether its table is clipped; all tables get L2."""
        return [not self.tables.skips(table) for _, table in pairs]

    def sum_rows(self, slices: Any) -> UniqueRows:
        """Sum the gradients of equal ids and count them, without a check; see `sum_duplicates`."""
        return sum_duplicates(slices)

    # AutoGraph warns of functions with only a docstring, so return None.

    def create_state(self, tables: Sequence[Any]) -> None:
        """Create state of tables in addition to the embedding optimizer's slots, which exist.

        Raises:
            InputError: if TensorFlow's dense Adam cannot count the numbers of a table.
        """
        if self.config.update == "dense" and isinstance(
            self.optimizer, tf.keras.optimizers.legacy.Adam
        ):
            for table in tables:
                _refuse_large(table)

    def catch_up(self, tables: Any, ids: Any) -> None:
        """Bring the rows of these ids, of any shape, up to date in one or several tables."""
        return None

    def flush(self, steps_made: Callable[[], int]) -> None:
        """Bring all rows of all tables up to date.

        Args:
            steps_made: returns the optimizer's steps, including those of a restored checkpoint.
        """
        return None

    def refuse_never_caught_up(self, tables: Sequence[Any]) -> None:
        """Refuse tables that a forward pass has read before their rows were up to date."""
        return None


def _refuse_large(table: Any) -> None:
    """Refuse a table on a GPU of which TensorFlow's Adam counts the numbers in int32."""
    on_gpu = tf.DeviceSpec.from_string(table.device).device_type == "GPU"
    if on_gpu and table.shape.num_elements() >= 1 << 31:
        raise InputError(
            f"table {table.name!r} has {table.shape.num_elements():,} numbers, but TensorFlow's "
            'dense Adam on a GPU can count fewer than 2^31: use update="exact", or '
            'backend="cupy"'
        )
