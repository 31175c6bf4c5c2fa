"""Support replicas of `tf.distribute`: replicated variables, and gradients and ids of a step.

A step runs in every replica. The replicas first exchange gradients and ids. So each one makes the
same step on its own copy of a table, and the copies stay equal without further exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from cowclip_merlin import compat
from cowclip_merlin.types import (
    ArrayOrTensor,
    DType,
    Gradient,
    KerasOptimizer,
    Operation,
    Pair,
    Strategy,
    Tensor,
    Variable,
)

tf = compat.tensorflow()


def sum_gradients(
    pairs: Sequence[Pair], aggregate: Callable[[list[Pair]], Iterable[Pair]]
) -> list[Pair]:
    """Sum dense gradients over replicas, and concatenate the sparse gradients of tables.

    The clip needs the counts of all replicas; else N replicas would train another algorithm.

    Args:
        pairs: gradient and variable, with gradients that `with_shape` returned.
        aggregate: the optimizer's function that sums dense gradients and concatenates sparse ones.
    """
    return list(aggregate(list(pairs)))


def with_shape(gradient: Gradient) -> Gradient:
    """Convert a gradient's dense shape, if any, to a tensor, as collective operations need it."""
    if not isinstance(gradient, tf.IndexedSlices) or gradient.dense_shape is None:
        return gradient
    shape = tf.convert_to_tensor(gradient.dense_shape)
    return tf.IndexedSlices(gradient.values, gradient.indices, shape)


def apply_locally(optimizer: KerasOptimizer, pairs: Sequence[Pair]) -> Operation:
    """Make one step of a Keras optimizer with gradients that are already summed over replicas."""
    return optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)


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
