"""Training steps as graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cowclip_merlin import compat

if TYPE_CHECKING:
    from cowclip_merlin.loading import Data, DeviceData


def make_train_step(model: Any, optimizer: Any, data: Data, loss_sum: Any) -> Any:
    """One training step as a graph: a batch of `data` in, weights moved, loss summed.

    The loss is the mean binary cross-entropy of the batch, computed from logits.
    """
    from cowclip_merlin import models

    tf = compat.tensorflow()
    models.attach(model, optimizer)
    losses_of = tf.nn.sigmoid_cross_entropy_with_logits
    if model.blocks[0].jit_compile:
        losses_of = tf.function(losses_of, jit_compile=True)

    @tf.function(input_signature=[data.signature])
    def step(batch: Any) -> None:
        inputs, label = data.unpack(batch)
        with tf.GradientTape() as tape:
            z = models.logits(model, inputs, training=True)[:, 0]
            losses = losses_of(label, z)
            # The mean; for the gradient of `reduce_mean` the host would wait for the device.
            loss = tf.reduce_sum(losses) / tf.cast(tf.size(losses), tf.float32)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        loss_sum.assign_add(tf.cast(tf.reduce_sum(losses), tf.float64))

    return step


MAX_ROWS_PER_EXECUTION, MAX_STEPS_PER_EXECUTION = 16384, 16


def steps_per_execution(batch_size: int) -> int:
    """Steps in one call of a graph: with small batches, the call itself takes much of the time.

    >>> [steps_per_execution(batch_size) for batch_size in (64, 1024, 5000, 131072)]
    [16, 16, 3, 1]
    """
    return max(1, min(MAX_STEPS_PER_EXECUTION, MAX_ROWS_PER_EXECUTION // batch_size))


def execution_lengths(
    first: int, steps: int, most: int, stops: Sequence[tuple[int, int]]
) -> Iterator[int]:
    """How many steps each execution makes, from step `first` on.

    Args:
        first: steps that are done.
        steps: of the epoch.
        most: steps of one execution.
        stops: pairs (every, before): between two steps something looks at the run, whenever
            the steps of this epoch and `before` others are a multiple of `every`.

    >>> list(execution_lengths(0, 40, 16, [(10, 5)]))
    [5, 10, 10, 10, 5]
    >>> list(execution_lengths(3, 40, 16, []))
    [16, 16, 5]
    """
    while first < steps:
        ends = [steps, first + most, *(first + n - (first + before) % n for n, before in stops)]
        yield min(ends) - first
        first = min(ends)


def make_train_function(model: Any, optimizer: Any, data: DeviceData, loss_sum: Any) -> Any:
    """A function of row numbers and a batch size, which makes one step for each batch of them.

    The last batch may be smaller.
    """
    tf = compat.tensorflow()
    step = make_train_step(model, optimizer, data, loss_sum)

    @tf.function(input_signature=[data.signature, tf.TensorSpec([], tf.int32)])
    def steps(rows: Any, batch_size: Any) -> None:
        for first in tf.range(0, tf.size(rows), batch_size):
            step(rows[first : first + batch_size])

    return steps
