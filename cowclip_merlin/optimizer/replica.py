"""Replicas of `tf.distribute`: variables that each holds, and what they exchange in a step.

A step runs in every replica. Gradients and ids are exchanged first, so each replica makes the
same step on its own copy of a table, and the copies stay equal without further exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from cowclip_merlin import compat

tf = compat.tensorflow()

Pair = tuple[Any, Any]  # gradient, variable


def sum_gradients(pairs: Sequence[Pair], aggregate: Callable[[list[Pair]], Any]) -> list[Pair]:
    """Gradients summed over replicas, those of tables with an entry for each occurrence of an id.

    Counts must be global before the clip, or N replicas would be another algorithm.

    Args:
        pairs: gradient and variable, the gradient as `with_shape` returns it.
        aggregate: the optimizer's way to sum dense gradients and join sparse ones.
    """
    return list(aggregate(list(pairs)))


def with_shape(gradient: Any) -> Any:
    """The gradient, its dense shape (if it has one) a tensor, as collective operations need it."""
    if not isinstance(gradient, tf.IndexedSlices) or gradient.dense_shape is None:
        return gradient
    shape = tf.convert_to_tensor(gradient.dense_shape)
    return tf.IndexedSlices(gradient.values, gradient.indices, shape)


def apply_locally(optimizer: Any, pairs: Sequence[Pair]) -> Any:
    """One step of a Keras optimizer on gradients that are summed over replicas already."""
    return optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)


def gather_ids(ids: Any) -> Any:
    """The ids of all replicas, [n]: their tables must stay equal."""
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return ids
    return replica.all_gather(ids, axis=0)


def strategy_of(variable: Any) -> Any | None:
    """The `tf.distribute` strategy that a variable was created under."""
    return getattr(variable, "distribute_strategy", None)


def run_in_replicas(variable: Any, function: Callable[..., Any], *args: Any, **more: Any) -> None:
    """Call a function with these arguments in every replica that holds the variable."""
    strategy = strategy_of(variable)
    if strategy is None or _is_replica_of(strategy):
        function(*args, **more)
    else:
        strategy.run(function, args=args, kwargs=more)


def _is_replica_of(strategy: Any) -> bool:
    current = tf.distribute.get_strategy() is strategy
    return current and not tf.distribute.in_cross_replica_context()


def device_of(variable: Any, *, cpu: bool = False) -> Any:
    """A scope that creates variables on this variable's device, or on the CPU.

    A strategy chooses devices by itself.
    """
    if strategy_of(variable) is not None:
        return nullcontext()
    return tf.device("CPU:0" if cpu else variable.device)


def add_replicated_weight(
    add_weight: Callable[..., Any], name: str, shape: Sequence[int], dtype: Any, **more: Any
) -> Any:
    """A variable that is equal in all replicas; a checkpoint holds that of the first.

    Args:
        add_weight: of a Keras optimizer.
        name: in checkpoints.
        shape: of the variable.
        dtype: of the variable.
        **more: for `add_weight`.
    """
    return add_weight(name, shape, dtype=dtype, trainable=False, **(_FIRST | more))


_FIRST = {"aggregation": tf.VariableAggregation.ONLY_FIRST_REPLICA}


def replicated_variable(value: Any, name: str) -> Any:
    """As `add_replicated_weight`, but not in checkpoints."""
    return tf.Variable(value, trainable=False, name=name, **_FIRST)


def create_synchronized(create: Callable[..., Any], **settings: Any) -> Any:
    """A variable creator, for `tf.variable_creator_scope`.

    A strategy refuses variables that ask for no synchronization, as some of Merlin's do.
    """
    if settings.get("synchronization") is tf.VariableSynchronization.NONE:
        settings |= {"synchronization": tf.VariableSynchronization.AUTO} | _FIRST
    return create(**settings)


def assign_locally(variable: Any, value: Any) -> None:
    """Assign in this replica alone: `variable.assign` would ask the others, which do the same."""
    tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)


def assign_rows_locally(variable: Any, ids: Any, rows: Any) -> None:
    """Write rows of a variable, in this replica alone."""
    tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=ids, updates=rows)
