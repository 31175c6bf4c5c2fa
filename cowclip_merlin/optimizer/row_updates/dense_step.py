"""Make one step of Adam of all dense weights in one launch, where that is possible."""

from __future__ import annotations

from collections.abc import Sequence

from cowclip_merlin import compat
from cowclip_merlin.optimizer.exchange.replica import strategy_of
from cowclip_merlin.optimizer.row_updates import gpu_ops
from cowclip_merlin.types import KerasOptimizer, Operation, Pair, Tensor, Variable

tf = compat.tensorflow()


def fits(optimizer: KerasOptimizer, pairs: Sequence[Pair], table: Variable) -> bool:
    """Whether the kernel makes the same step as this optimizer, without replicas.

    Args:
        optimizer: the dense optimizer.
        pairs: gradient and variable.
        table: a table, on whose device the weights must be.
    """
    plain = type(optimizer) is tf.keras.optimizers.legacy.Adam and not (
        optimizer.amsgrad
        or optimizer.gradient_transformers
        or any(getattr(optimizer, x) for x in ("clipnorm", "clipvalue", "global_clipnorm"))
    )
    return plain and strategy_of(table) is None and all(_fits(*pair, table) for pair in pairs)


def _fits(gradient: Tensor, variable: Variable, table: Variable) -> bool:
    return (
        isinstance(gradient, tf.Tensor)
        and gradient.dtype == compat.stored(variable).dtype.base_dtype == tf.float32
        and strategy_of(variable) is None
        and getattr(variable, "constraint", None) is None
        and variable.device == table.device
    )


def make(
    optimizer: KerasOptimizer,
    pairs: Sequence[Pair],
    *,
    operations: gpu_ops.Operations,
    number: int,
    status: Variable,
) -> Operation:
    """Make the step, unless the tables have refused it; the counter of the optimizer goes on.

    Args:
        optimizer: a legacy Adam, for which `fits` holds.
        pairs: gradient float32 and variable.
        operations: the loaded operations.
        number: of a table of the same step in the operations.
        status: reports refused steps.
    """
    slots = [[v, *(optimizer.get_slot(v, name) for name in ("m", "v"))] for _, v in pairs]
    handles = [x.handle for each in slots for x in each]
    beta_1, beta_2 = (optimizer._get_hyper(x, tf.float32) for x in ("beta_1", "beta_2"))
    made = operations.module.cow_clip_dense(
        rate=optimizer._decayed_lr(tf.float32),
        iterations=optimizer.iterations.read_value(),
        beta_1=beta_1,
        beta_2=beta_2,
        counts=[],
        gradients=[gradient for gradient, _ in pairs],
        variables=[*handles, status.handle],
        tables=[number],
        wait=False,  # the step of the tables has waited, if the host waits at all
        epsilon=optimizer.epsilon,
    )
    with tf.control_dependencies([] if made is None else [made]):
        return optimizer.iterations.assign_add(1, read_value=False)
