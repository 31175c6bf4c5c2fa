"""Exchange gradients and ids of a step between replicas of `tf.distribute`, or between workers.

A step runs in every replica. The replicas first exchange gradients and ids. So each one makes the
same step on its own copy of a table, and the copies stay equal without further exchange.

Each worker sums the gradients of equal ids in its part of the batch, and counts the ids. It then
gets the distinct ids, counts and sums of all workers. The clip needs the counts of the whole batch:
without them, N workers would train another algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from cowclip_merlin import compat
from cowclip_merlin.optimizer.unique_rows import CountedSlices, UniqueRows, counts_of
from cowclip_merlin.types import (
    ArrayOrTensor,
    DType,
    IndexedSlices,
    Pair,
    Strategy,
    Tensor,
    Variable,
)
from cowclip_merlin.workers import Workers
from cowclip_merlin.workers.collectives import gather_counts, gather_rows, sum_over

tf = compat.tensorflow()


def gather_ids(ids: Tensor) -> Tensor:
    """Gather the ids of all replicas, [n], so that their tables stay equal."""
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return ids
    return replica.all_gather(ids, axis=0)


def strategy_of(variable: Variable) -> Strategy | None:
    """Return the `tf.distribute` strategy that created a variable, or None."""
    return getattr(variable, "distribute_strategy", None)


def run_in_replicas(
    variable: Variable, function: Callable[..., Any], *args: Any, **more: Any
) -> None:
    """Call a function with these arguments in every replica of the variable."""
    strategy = strategy_of(variable)
    if strategy is None or _is_replica_of(strategy):
        function(*args, **more)
    else:
        strategy.run(function, args=args, kwargs=more)


def _is_replica_of(strategy: Strategy) -> bool:
    current = tf.distribute.get_strategy() is strategy
    return current and not tf.distribute.in_cross_replica_context()


def device_of(variable: Variable) -> AbstractContextManager[object]:
    """Return a scope that creates variables on this variable's device.

    With a strategy, the scope does nothing, since the strategy chooses devices.
    """
    if strategy_of(variable) is not None:
        return nullcontext()
    return tf.device(variable.device)


def add_replicated_weight(
    add_weight: Callable[..., Variable], name: str, shape: Sequence[int], dtype: DType, **more: Any
) -> Variable:
    """Create a variable that is equal in all replicas; checkpoints store that of the first.

    Args:
        add_weight: method of a Keras optimizer.
        name: name in checkpoints.
        shape: shape of the variable.
        dtype: data type of the variable.
        **more: further arguments of `add_weight`.
    """
    return add_weight(name, shape, dtype=dtype, trainable=False, **(_FIRST | more))


_FIRST = {"aggregation": tf.VariableAggregation.ONLY_FIRST_REPLICA}


def replicated_variable(value: ArrayOrTensor, name: str) -> Variable:
    """Create a variable like `add_replicated_weight`, which checkpoints leave out."""
    return tf.Variable(value, trainable=False, name=name, **_FIRST)


def create_synchronized(create: Callable[..., Variable], **settings: Any) -> Variable:
    """Create a variable that a strategy accepts, in `tf.variable_creator_scope`.

    A strategy refuses variables without synchronization, such as some of Merlin's.
    """
    if settings.get("synchronization") is tf.VariableSynchronization.NONE:
        settings |= {"synchronization": tf.VariableSynchronization.AUTO} | _FIRST
    return create(**settings)


def assign_locally(variable: Variable, value: Tensor) -> None:
    """Assign only in this replica; with `variable.assign`, the replicas would synchronize."""
    tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)


def assign_rows_locally(variable: Variable, ids: Tensor, rows: Tensor) -> None:
    """Write rows of a variable only in this replica."""
    tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=ids, updates=rows)


SumRows = Callable[[IndexedSlices], UniqueRows]


class WorkerGradients(NamedTuple):
    """Gradients of all workers.

    Attributes:
        tables: `CountedSlices` and table; an id occurs once for each worker that has it.
        dense: dense gradient and variable.
    """

    tables: list[Pair]
    dense: list[Pair]


def exchange_gradients(
    workers: Workers,
    tables: Sequence[Pair],
    dense: Sequence[Pair],
    read_together: Callable[[Variable], Hashable],
    sum_rows: SumRows,
) -> WorkerGradients:
    """Return the mean of the workers' gradients, and the counts of their ids.

    The gradient of a table of which each worker has a part comes with counts. It is complete
    already: its forward pass and backward pass have exchanged rows and counts.

    Args:
        workers: this process and the others.
        tables: `tf.IndexedSlices` with one entry per occurrence, or `CountedSlices`, and table.
        dense: dense gradient and variable.
        read_together: returns a value that tables share which are read at the same ids.
        sum_rows: sums the gradients of equal ids, and counts them.
    """
    groups = _groups(tables, read_together)
    own = [_Sums.of([tables[i][0] for i in group], sum_rows) for group in groups]
    if own:
        sizes = tf.stack([tf.size(each.ids) for each in own])
        counts = gather_counts(workers, sizes, "counts of rows")
    gradients = [(_of_shard(gradient, workers.size), table) for gradient, table in tables]
    for number, (group, sums) in enumerate(zip(groups, own)):
        every = sums.of_all(workers, counts[:, number], f"table {number}")
        for index, slices in zip(group, every.slices(workers.size)):
            gradients[index] = slices, tables[index][1]
    return WorkerGradients(gradients, _mean_of_all(workers, dense))


def _of_shard(gradient: IndexedSlices, workers: int) -> IndexedSlices:
    """Return the mean gradient of a shard with its counts; any other gradient as it is."""
    counts = counts_of(gradient)
    if counts is None:
        return gradient
    return CountedSlices(gradient.values / workers, gradient.indices, counts)


def _groups(
    tables: Sequence[Pair], read_together: Callable[[Variable], Hashable]
) -> list[list[int]]:
    """Group the whole tables that are read at the same ids, so that their ids are sent once."""
    groups: dict[Hashable, list[int]] = {}
    for i, (gradient, table) in enumerate(tables):
        if counts_of(gradient) is None:
            groups.setdefault(read_together(table), []).append(i)
    return list(groups.values())


class _Sums(NamedTuple):
    """Distinct ids, counts int32 [u], and the sums of several tables side by side, [u, d].

    With micro-batches, the squares of all tables follow the sums, [u, 2 d].
    """

    ids: Tensor
    cnt: Tensor
    g: Tensor
    widths: list[int]
    has_squares: bool

    @classmethod
    def of(cls, gradients: Sequence[IndexedSlices], sum_rows: SumRows) -> _Sums:
        """Sum gradients of tables that are read at the same ids."""
        values = [tf.cast(each.values, tf.float32) for each in gradients]
        rows = sum_rows(tf.IndexedSlices(tf.concat(values, 1), gradients[0].indices))
        widths = [each.shape[1] for each in values]
        has_squares = rows.squares is not None
        sums = tf.concat([rows.g, rows.squares], 1) if has_squares else rows.g
        return cls(tf.cast(rows.ids, tf.int32), rows.cnt, sums, widths, has_squares)

    def of_all(self, workers: Workers, counts: Tensor, name: str) -> _Sums:
        """Return the rows of all workers, one after the other."""
        bits = [tf.bitcast(each, tf.float32)[:, tf.newaxis] for each in (self.ids, self.cnt)]
        rows = tf.concat([*bits, self.g], 1)
        rows = tf.ensure_shape(rows, [None, 2 + sum(self.widths) * (1 + self.has_squares)])
        every = gather_rows(workers, rows, counts, name)
        ids, cnt = (tf.bitcast(every[:, i], tf.int32) for i in range(2))
        return _Sums(ids, cnt, every[:, 2:], self.widths, self.has_squares)

    def slices(self, workers: int) -> list[CountedSlices]:
        """Return the mean gradient of each table."""
        total = sum(self.widths)
        parts = tf.split(self.g[:, :total] / workers, self.widths, axis=1)
        squares = [None] * len(parts)
        if self.has_squares:
            squares = tf.split(self.g[:, total:] / workers**2, self.widths, axis=1)
        return [CountedSlices(part, self.ids, self.cnt, q) for part, q in zip(parts, squares)]


def _mean_of_all(workers: Workers, pairs: Sequence[Pair]) -> list[Pair]:
    """Return the mean of the workers' dense gradients, by one exchange for each data type."""
    result = list(pairs)
    for dtype in sorted({g.dtype.name for g, _ in pairs}):
        chosen = [i for i, (g, _) in enumerate(pairs) if g.dtype.name == dtype]
        shapes = [pairs[i][1].shape for i in chosen]
        flat = tf.concat([tf.reshape(pairs[i][0], [-1]) for i in chosen], 0)
        flat = tf.ensure_shape(flat, [sum(shape.num_elements() for shape in shapes)])
        mean = sum_over(workers, flat, "dense") / workers.size
        parts = tf.split(mean, [shape.num_elements() for shape in shapes])
        for i, part, shape in zip(chosen, parts, shapes):
            result[i] = tf.reshape(part, shape), pairs[i][1]
    return result
