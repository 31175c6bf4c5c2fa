"""What `CowClip` asks of the code that makes its steps, and the state of rows updated one by one.

With `update="exact"`, each row stores the number of steps that it has seen. Before a row is read
again, the engine replays the steps that it has missed; see `kernels.reference.replay_rows`.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar, NamedTuple, NoReturn, TypeAlias

from cowclip_merlin import compat
from cowclip_merlin.choices import RowSettings
from cowclip_merlin.errors import InputError
from cowclip_merlin.optimizer.config import Config, is_plain_adagrad, row_slots
from cowclip_merlin.optimizer.embedding_tables import EmbeddingTables
from cowclip_merlin.optimizer.exchange import (
    add_replicated_weight,
    device_of,
    run_in_replicas,
    strategy_of,
)
from cowclip_merlin.optimizer.row_optimizers import VaryingAdam
from cowclip_merlin.optimizer.unique_rows import BatchRead, ReadForm, UniqueRows, sum_duplicates
from cowclip_merlin.tables import variable_memory
from cowclip_merlin.types import (
    Array,
    DType,
    IndexedSlices,
    KerasOptimizer,
    Operation,
    Pair,
    Tensor,
    Variable,
)

tf = compat.tensorflow()

Summary: TypeAlias = "tuple[Tensor, Tensor] | None"
"""Share of clipped rows and mean factor, scalars; None if no table is clipped."""

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
            room for a third as many steps; see `kernels/cuda/replay.cuh`.
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
    """Makes the steps of a `CowClip`: `KerasEngine` by whole tables, each `RowEngine` by rows.

    Args:
        config: settings of the steps.
        tables: the embedding tables.
        optimizer: the embedding optimizer.
    """

    config: Config
    tables: EmbeddingTables
    optimizer: KerasOptimizer

    reads_batches: ClassVar[bool] = False
    """Whether `read` can read all that the layers of a model need of a batch at once."""

    @abstractmethod
    def create(self, tables: Sequence[Variable]) -> None:
        """Check these tables, and create their state; the optimizer's slots exist already."""

    @abstractmethod
    def catch_up(self, tables: Sequence[Variable], ids: Tensor) -> None:
        """Bring the rows of these ids, integer [n] with any duplicates, up to date."""

    @abstractmethod
    def step(self, pairs: Sequence[Pair]) -> tuple[list[Tensor], Summary]:
        """Make one step of all tables.

        Args:
            pairs: `tf.IndexedSlices` with one entry per occurrence, or `CountedSlices`, and table.

        Returns:
            Tensors to wait for the step; share of clipped rows and mean factor.
        """

    def step_dense(self, optimizer: KerasOptimizer, pairs: Sequence[Pair]) -> Operation:
        """Make one step of the dense weights, after that of the tables.

        Args:
            optimizer: the dense optimizer.
            pairs: gradient, summed over replicas, and variable.
        """
        return optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)

    @abstractmethod
    def flush(self, *, wait: bool = True) -> None:
        """Bring all rows of all tables up to date; with `wait`, raise an earlier step's error."""

    def read(
        self, tables: Sequence[Variable], ids: Tensor, numbers: Tensor, form: ReadForm
    ) -> BatchRead | None:
        """Read a batch, if the engine `reads_batches`; see `CowClip.read_batch`."""
        return None

    def sum_rows(self, slices: IndexedSlices, micro_batches: int | None = None) -> UniqueRows:
        """Sum the gradients of equal ids and count them, without a check.

        Args:
            slices: `tf.IndexedSlices` with one entry per occurrence, values [n, d].
            micro_batches: equal parts of the batch, for `UniqueRows.squares`; None: no squares.

        Returns:
            The distinct ids in any order, counts int32.
        """
        return sum_duplicates(slices, micro_batches)


@dataclass(frozen=True, kw_only=True)
class RowEngine(Engine):
    """Updates the rows of a batch; unless `update` is "lazy", also by the steps that they missed.

    Args:
        add_weight: method `add_weight` of the CowClip, whose checkpoints then contain the state.
        unclipped: the settings of tables without a clip.
    """

    add_weight: Callable[..., Variable]
    unclipped: Config

    def __deepcopy__(self, memo: dict[int, object]) -> NoReturn:
        """Refuse to copy: a copy would contain copies of the tables and update only these.

        Raises:
            InputError: always; the message has the remedy.
        """
        raise InputError(
            "CowClip with rows that are updated one by one cannot be copied: create another with "
            "CowClip.from_config(optimizer.get_config())"
        )

    @property
    def exact(self) -> bool:
        """Whether each row counts its steps, so that an absent row can make them later."""
        return self.config.update != "lazy" and not is_plain_adagrad(self.optimizer)

    def create(self, tables: Sequence[Variable]) -> None:
        """Create the variables of these tables, once.

        Raises:
            InputError: if a table is not float32, has a constraint, or is on a device that the
                backend does not support.
        """
        for known in (self.tables.of(table) for table in tables):
            if known.state is None:
                self._refuse(known.variable)
                with tf.init_scope():
                    known.state = self._create(known.variable)
                    self._hold_in_large_pages(known.state)

    def _refuse(self, table: Variable) -> None:
        # The same algorithm in plain operations supports other types and constraints.
        other = "" if self.config.update == "lazy" else 'update="dense" with '
        if table.dtype.base_dtype != tf.float32:
            raise InputError(
                f"table {table.name!r} is {table.dtype.base_dtype.name}, but rows are updated one "
                f'by one in float32: make it float32, or use {other}backend="tensorflow"'
            )
        if getattr(table, "constraint", None) is not None:
            raise InputError(
                f"table {table.name!r} has a constraint, which updates of single rows "
                'ignore: remove it, or use update="dense" with backend="tensorflow"'
            )
        if self.config.backend != "tensorflow":
            variable_memory.refuse_elsewhere(table, self.config.backend)

    def _create(self, table: Variable) -> TableState | AdagradState:
        slots = [self.optimizer.get_slot(table, name) for name in row_slots(self.optimizer)]
        if len(slots) == 1:
            return AdagradState(table, *slots)
        if not self.exact:
            return TableState(table, *slots)
        # Names of tables depend on the layers made before in this process, and a checkpoint finds
        # variables by name. So use the table's number instead.
        name = f"table.{len(self.tables.with_state)}"
        with device_of(table):
            last = self._weight(f"{name}.last", [table.shape[0]], tf.float32)
            history = self._weight(f"{name}.history", [HISTORY], tf.float32)
            count = self._weight(f"{name}.count", [1], tf.int64)
        return TableState(table, *slots, last, history, count)

    def _weight(self, name: str, shape: list[int], dtype: DType) -> Variable:
        return add_replicated_weight(self.add_weight, name, shape, dtype, initializer="zeros")

    def _hold_in_large_pages(self, state: TableState | AdagradState) -> None:
        known = [x for x in state[:4] if x is not None]  # all are float32
        large = [x for x in known if 4 * x.shape.num_elements() >= variable_memory.LEAST]
        if large and self.config.backend == "numba" and strategy_of(state.w) is None:
            variable_memory.on_host(variable_memory.hold_in_large_pages, [], large, [])

    def flush(self, *, wait: bool = True) -> None:
        """Bring all rows up to date; with `wait`, raise the error of an earlier step now."""
        for table in self.tables.with_state:
            run_in_replicas(table, self.flush_table, table, wait=wait)

    @abstractmethod
    def flush_table(self, table: Variable, *, wait: bool = True) -> None:
        """Bring every row up to date and forget the history.

        Args:
            table: a table of this optimizer.
            wait: wait for earlier steps, and raise their error now.
        """

    def settings_of(self, table: Variable) -> RowSettings:
        """Return the settings of a table, which may have no clip."""
        return self.unclipped if self.tables.skips(table) else self.config

    def not_finite(self, table: Variable, row: int) -> str:
        """Return the error message for a gradient that contains NaN or Inf."""
        return f"the gradient of {self.tables.describe(table, row)} is not finite"

    def alpha(self) -> Tensor:
        """Return this step's rate with both bias corrections of Adam, bit-equal to TensorFlow's."""
        adam = self.optimizer
        if isinstance(adam, VaryingAdam):
            return adam.next_alpha()
        t = tf.cast(adam.iterations + 1, tf.float32)
        lr = adam._decayed_lr(tf.float32)
        beta_1, beta_2 = (adam._get_hyper(name, tf.float32) for name in ("beta_1", "beta_2"))
        return lr * tf.sqrt(1 - tf.pow(beta_2, t)) / (1 - tf.pow(beta_1, t))


def summarize(factors: Sequence[Tensor], clipped: Sequence[bool]) -> Summary:
    """Compute the share of clipped rows and the mean factor, scalars; None without tables.

    Args:
        factors: clip factors of the batch's rows, one tensor [u] per table.
        clipped: for each table, whether its factors count.

    >>> factors = [tf.constant([1.0, 0.5]), tf.constant([0.25]), tf.constant([1.0, 0.5])]
    >>> [float(x) for x in summarize(factors, [True, False, True])]
    [0.5, 0.75]
    """
    present = [tf.cast(f, tf.float32) for f, each in zip(factors, clipped) if each]
    if not present:
        return None
    present = tf.concat(present, 0)
    total = tf.cast(tf.size(present), tf.float32)
    cut = tf.reduce_sum(tf.cast(present < 1, tf.float32))
    share = tf.math.divide_no_nan(cut, total)
    return share, tf.math.divide_no_nan(tf.reduce_sum(present), total)


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
