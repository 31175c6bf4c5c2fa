"""Compile training steps as TensorFlow graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from cowclip_merlin import compat, workers
from cowclip_merlin.targets import only_clicks
from cowclip_merlin.types import Function, Gradient, Tensor, Variable

if TYPE_CHECKING:
    from cowclip_merlin.loading import Data, DeviceData
    from cowclip_merlin.loading.row_order import PackedBatch
    from cowclip_merlin.models import CTRModel
    from cowclip_merlin.optimizer import CowClip


def make_train_step(
    model: CTRModel, optimizer: CowClip, data: Data, loss_sum: Variable
) -> Function:
    """Return a graph that trains on one batch of `data` and adds its loss to `loss_sum`.

    The gradient is that of the batch's mean binary cross-entropy, computed from the logits minus
    the offsets, if the batch has offsets. With several targets, it is the mean of the sums that
    `losses_of` describes. If its rows have weights, it is the weighted mean, and a batch whose
    weights are all 0 makes no step.

    With several workers, each one trains on its part of the batch. The optimizer takes the mean of
    their gradients, so each worker's loss is its sum, divided by the mean number of rows,
    or by the mean sum of weights.
    """
    from cowclip_merlin import models
    from cowclip_merlin.models.multi_task import losses as targets_losses

    tf, group = compat.tensorflow(), workers.current()
    models.attach(model, optimizer)
    targets = model.blocks[0].columns.targets
    losses_of = targets_losses.losses_of(targets)
    if model.blocks[0].jit_compile:
        losses_of = tf.function(losses_of, jit_compile=True, autograph=False)

    @tf.function(input_signature=[data.signature], autograph=False)
    def step(batch: PackedBatch) -> None:
        whole = batch
        batch, rows = own_part(batch, data, group)
        batch = data.unpack(batch)
        with tf.GradientTape() as tape:
            z = models.logits(model, batch, training=True)
            z = z[:, 0] if only_clicks(targets) else z
            if batch.offsets is not None:
                z -= batch.offsets
            losses = losses_of(batch.labels, z)
            if batch.weights is not None:
                losses *= batch.weights
                rows = data.sum_of_weights(whole)
            # With `tf.size` or the gradient of `reduce_mean`, the host would wait for the device.
            count = tf.reduce_sum(tf.ones_like(losses)) if rows is None else rows
            loss = tf.reduce_sum(losses) / tf.cast(count, tf.float32)
            if group:
                loss *= group.size
        gradients = tape.gradient(loss, model.trainable_variables)
        pairs = list(zip(gradients, model.trainable_variables))
        if batch.weights is None:
            optimizer.apply_gradients(pairs)
        else:  # with a sum of 0, the gradients are NaN, and L2 and momentum would change weights
            tf.cond(rows > 0, lambda: _apply(optimizer, pairs), lambda: None)
        loss_sum.assign_add(tf.cast(tf.reduce_sum(losses), tf.float64))

    return step


def _apply(optimizer: CowClip, pairs: list[tuple[Gradient, Variable]]) -> None:
    optimizer.apply_gradients(pairs)


def own_part(
    batch: PackedBatch, data: Data, group: workers.Workers | None
) -> tuple[PackedBatch, Tensor | None]:
    """Return the part of a batch that this worker trains on, and the rows of the whole batch.

    Without other workers, return the batch, and None.
    """
    if group is None:
        return batch, None
    rows = data.count(batch)
    return data.part(batch, *group.part_of(rows)), rows


MAX_ROWS_PER_EXECUTION, MAX_STEPS_PER_EXECUTION = 16384, 16


def steps_per_execution(batch_size: int) -> int:
    """Return the number of steps per graph call; for small batches a single call costs too much.

    >>> [steps_per_execution(batch_size) for batch_size in (64, 1024, 5000, 131072)]
    [16, 16, 3, 1]
    """
    return max(1, min(MAX_STEPS_PER_EXECUTION, MAX_ROWS_PER_EXECUTION // batch_size))


def execution_lengths(
    first: int, steps: int, most: int, stops: Sequence[tuple[int, int]]
) -> Iterator[int]:
    """Yield the number of steps of each execution, from step `first` on.

    Args:
        first: number of steps done in this epoch.
        steps: number of steps in the epoch.
        most: maximum number of steps in one execution.
        stops: pairs (every, before). An execution ends whenever the steps of this epoch plus
            `before` are a multiple of `every`.

    >>> list(execution_lengths(0, 40, 16, [(10, 5)]))
    [5, 10, 10, 10, 5]
    >>> list(execution_lengths(3, 40, 16, []))
    [16, 16, 5]
    """
    while first < steps:
        ends = [steps, first + most, *(first + n - (first + before) % n for n, before in stops)]
        yield min(ends) - first
        first = min(ends)


def make_train_function(
    model: CTRModel, optimizer: CowClip, data: DeviceData, loss_sum: Variable
) -> Function:
    """Return a function of row numbers and a batch size that makes one step for each batch.

    The last batch may be smaller.
    """
    tf = compat.tensorflow()
    step = make_train_step(model, optimizer, data, loss_sum)

    signature = [data.signature, tf.TensorSpec([], tf.int32)]

    @tf.function(input_signature=signature, autograph=False)
    def steps(rows: Tensor, batch_size: Tensor) -> None:
        def one_step(first: Tensor) -> Tensor:
            step(rows[first : first + batch_size])
            return first + batch_size

        # The exchanges of several workers need the order of the steps.
        tf.while_loop(lambda first: first < tf.size(rows), one_step, [0], parallel_iterations=1)

    return steps
