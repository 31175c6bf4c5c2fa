"""Base class of the engines, which update the rows of embedding tables.

With `update="exact"`, each row stores the number of steps that it has seen. Before a row is read
again, the engine replays the steps that it has missed; see `kernels.reference.replay_rows`.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.kernels import RowSettings
from cowclip_merlin.optimizer.exchange import apply_locally
from cowclip_merlin.optimizer.row_optimizers import VaryingAdam
from cowclip_merlin.optimizer.unique_rows import UniqueRows, sum_duplicates
from cowclip_merlin.types import (
    Array,
    IndexedSlices,
    KerasOptimizer,
    Operation,
    Pair,
    Tensor,
    Variable,
)

if TYPE_CHECKING:
    from cowclip_merlin.optimizer.unique_rows import BatchRead, ReadForm
    from cowclip_merlin.optimizer.update import Summary

tf = compat.tensorflow()

HISTORY = 1 << 16
"""Length of the history of steps; when it is full, all rows are brought up to date."""

WATCHED = 1000
"""Number of steps after a flush in which the engine warns of gradients of stale rows."""


class TableState(NamedTuple):
    """Variables of one table, or their memory as arrays.

    Attributes:
        w: weights [N, d].
        m: Adam's first moments [N, d].
        v: Adam's second moments [N, d].
        last: number of steps that each row has seen since the last flush, float32 [N]. Every
            device can scatter float32, and it represents integers up to HISTORY exactly.
        history: Adam's alpha of every step since the last flush, float32 [HISTORY]; negative for
            a step that the GPU refused, which no row replays. On a GPU it has further parts and
            room for a third as many steps; see `kernels.cuda.replay`.
        count: number of steps since the last flush, int64 [1].
    """

    w: Variable | Array
    m: Variable | Array
    v: Variable | Array
    last: Variable | Array | None = None
    history: Variable | Array | None = None
    count: Variable | Array | None = None


class AdagradState(NamedTuple):
    """Variables of one table that Adagrad trains, or their memory as arrays.

    Attributes:
        w: weights [N, d].
        accumulator: [N, d], or [N, 1] with one number per row.
    """

    w: Variable | Array
    accumulator: Variable | Array


@dataclass(frozen=True, kw_only=True)
class Engine(ABC):
    """Updates rows of tables.

    Args:
        optimizer: the embedding optimizer, a legacy Keras Adam; or Adagrad in `AdagradEngine`.
        exact: whether each row counts its steps, so that an absent row can make them later.
        state_of: table -> its `TableState` or `AdagradState`.
        settings_of: table -> its `RowSettings`.
        describe: table, row -> text that names the row in errors.
    """

    optimizer: KerasOptimizer
    exact: bool
    state_of: Callable[[Variable], Any]
    settings_of: Callable[[Variable], RowSettings]
    describe: Callable[[Variable, int], str]

    @abstractmethod
    def catch_up(self, tables: Sequence[Variable], ids: Tensor) -> None:
        """Bring the rows of these ids, integer [n] with any duplicates, up to date."""

    def read(
        self, tables: Sequence[Variable], ids: Tensor, numbers: Tensor, form: ReadForm
    ) -> BatchRead | None:
        """Read all that the layers need of a batch at once; None if this engine cannot.

        Args:
            tables: of the embeddings, and if there are id weights, of these.
            ids: id of each occurrence, integer [b, F].
            numbers: continuous features, float32 [b, C].
            form: what to read.
        """
        return None

    @abstractmethod
    def update(
        self, pairs: Sequence[Pair], counted: Sequence[bool]
    ) -> tuple[list[Tensor], Summary]:
        """Make one step of all tables.

        Args:
            pairs: `tf.IndexedSlices` with one entry per occurrence, or `CountedSlices`, and
                table.
            counted: for each table, whether the statistics include its clip factors.

        Returns:
            Tensors to wait for the step; share of clipped rows and mean factor, or None if no
            table is counted.
        """

    def sum_rows(self, slices: IndexedSlices, micro_batches: int | None = None) -> UniqueRows:
        """Sum the gradients of equal ids and count them, without a check.

        Args:
            slices: `tf.IndexedSlices` with one entry per occurrence, values [n, d].
            micro_batches: equal parts of the batch, for `UniqueRows.squares`; None: no squares.

        Returns:
            The distinct ids in any order, counts int32.
        """
        return sum_duplicates(slices, micro_batches)

    @abstractmethod
    def flush(self, table: Variable, *, wait: bool = True) -> None:
        """Bring every row up to date and forget the history.

        Args:
            table: a table of this optimizer.
            wait: wait for earlier steps, and raise their error now.
        """

    def update_dense(self, optimizer: KerasOptimizer, pairs: Sequence[Pair]) -> Operation:
        """Make one step of the dense weights; see `Update.apply_dense`."""
        return apply_locally(optimizer, pairs)

    def not_finite(self, table: Variable, row: int) -> str:
        """Return the error message for a gradient that contains NaN or Inf."""
        return f"the gradient of {self.describe(table, row)} is not finite"

    def alpha(self) -> Tensor:
        """Return this step's rate with both bias corrections of Adam, bit-equal to TensorFlow's."""
        adam = self.optimizer
        if isinstance(adam, VaryingAdam):
            return adam.next_alpha()
        t = tf.cast(adam.iterations + 1, tf.float32)
        lr = adam._decayed_lr(tf.float32)
        beta_1, beta_2 = (adam._get_hyper(name, tf.float32) for name in ("beta_1", "beta_2"))
        return lr * tf.sqrt(1 - tf.pow(beta_2, t)) / (1 - tf.pow(beta_1, t))


def refuse_outside(tables: Sequence[Variable], least: int, largest: int) -> None:
    """Refuse ids outside a table, because the kernels do not check ids."""
    for table, outermost in product(tables, (least, largest)):
        if not 0 <= outermost < table.shape[0]:
            raise InputError(outside_words(table, outermost))


def outside_words(table: Variable, id_: int) -> str:
    """Return the error message for an id outside a table."""
    return (
        f"id {id_} is outside table {table.name!r}, which has {table.shape[0]} rows; "
        "use the ids of the data it was made for"
    )


def warn_of_stale_rows(table: Variable) -> None:
    """Warn that gradients were computed from rows that had missed steps."""
    warnings.warn(
        f'update="exact": rows of {table.name!r} were not brought up to date before the forward '
        "pass read them; use the models of cowclip_merlin with training=True, or call "
        "catch_up(table, ids) with exactly the ids of the lookup; ignore this warning if two steps "
        "apply gradients of one forward pass",
        stacklevel=2,
    )
