"""Compile training steps as TensorFlow graphs, and stop at NaN or infinity."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from cowclip_merlin import compat, workers
from cowclip_merlin.errors import Diverged
from cowclip_merlin.targets import only_clicks
from cowclip_merlin.types import Function, Gradient, Tensor, Variable

if TYPE_CHECKING:
    from cowclip_merlin.batch import Batch
    from cowclip_merlin.loading import Data, DeviceData
    from cowclip_merlin.loading.row_order import PackedBatch
    from cowclip_merlin.models import CTRModel
    from cowclip_merlin.models.base import ClickModel
    from cowclip_merlin.models.features import Features, ReadFeatures
    from cowclip_merlin.optimizer import CowClip


@contextmanager
def raising_diverged() -> Iterator[None]:
    """Raise the optimizer's error about a non-finite gradient as `Diverged`.

    On a GPU, a later step or the optimizer's `flush` may raise the error.

    Raises:
        Diverged: if a gradient is not finite.
    """
    try:
        yield
    except compat.tensorflow().errors.OpError as error:
        reason = re.search(r"the gradient of .* is not finite", str(error))
        if reason is None:
            raise
        raise _diverged(reason[0]) from error


def check_loss(loss: float, epoch: int) -> None:
    """Check the sum of the losses of an epoch; epochs count from 1.

    Raises:
        Diverged: if the sum is not finite.
    """
    if not math.isfinite(loss):
        raise _diverged(f"the loss is {loss} in epoch {epoch}")


def check_predictions(nan_rows: int, epoch: int) -> None:
    """Check the predictions after an epoch: its losses do not show the effect of its last step.

    Args:
        nan_rows: how many predictions are NaN.
        epoch: number of the epoch, from 1.

    Raises:
        Diverged: if there are any.
    """
    if nan_rows:
        raise _diverged(f"probabilities are NaN after epoch {epoch}")


def _diverged(what: str) -> Diverged:
    return Diverged(f"training diverged: {what}; use smaller learning rates or a smaller batch")


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

    tf, group = compat.tensorflow(), workers.current()
    models.attach(model, optimizer)
    block = model.blocks[0]
    backward = _loss_and_gradients(model)

    @tf.function(input_signature=[data.signature], autograph=False)
    def step(batch: PackedBatch) -> None:
        whole, rows = batch, None
        if group is not None:  # this worker trains on its part
            rows = data.count(batch)
            batch = data.part(batch, *group.part_of(rows))
        batch = data.unpack(batch)
        if batch.weights is not None:
            rows = data.sum_of_weights(whole)
        if rows is not None:  # before XLA: on a GPU, int32 is in the host's memory
            rows = tf.cast(rows, tf.float32)
        variables = model.trainable_variables
        cowclip = block.row_sync.cowclip
        read = _read_at_once if cowclip is not None and cowclip.reads_batches else _read
        features, of_tables, aggregate = read(block, batch, variables)
        losses, of_features, of_weights = backward(
            features, batch.labels, batch.offsets, batch.weights, rows
        )
        pairs = list(zip(_sums(of_tables(of_features), of_weights), variables))

        def apply() -> None:
            optimizer.apply_gradients(pairs, experimental_aggregate_gradients=aggregate)

        if batch.weights is None:
            apply()
        else:  # with a sum of 0, the gradients are NaN, and L2 and momentum would change weights
            tf.cond(rows > 0, apply, lambda: None)
        loss_sum.assign_add(tf.cast(losses, tf.float64))

    return step


def _loss_and_gradients(model: CTRModel) -> Function:
    """Return a function that computes the layers of a model, the loss and the backward pass.

    It takes `Features`, labels, offsets, weights and the number of rows (or the sum of weights) of
    the whole batch, float32; None are absent. It returns the sum of the losses, the gradients of
    `Features.from_tables`, and those of the model's trainable weights, None for the tables.

    With the model's `jit_compile`, XLA compiles it as a whole. The lookups and the gradients of the
    tables stay outside, because XLA has no operation that counts ids.
    """
    from cowclip_merlin.models import multi_task as targets_losses

    tf, group, block = compat.tensorflow(), workers.current(), model.blocks[0]
    targets = block.columns.targets
    losses_of = targets_losses.losses_of(targets, block.columns.scales)
    one_click = only_clicks(targets)

    def compute(
        features: Features,
        labels: Tensor,
        offsets: Tensor | None,
        weights: Tensor | None,
        rows: Tensor | None,
    ) -> tuple[Tensor, list[Tensor], list[Gradient]]:
        with tf.GradientTape() as tape:
            tape.watch(features.from_tables)
            z = tf.cast(block.logits_of(features, training=True), tf.float32)
            z = z[:, 0] if one_click else z
            losses = losses_of(labels, z if offsets is None else z - offsets)
            if weights is not None:
                losses *= weights
            total = tf.reduce_sum(losses)
            # With `tf.size` or the gradient of `reduce_mean`, the host would wait for the device.
            count = tf.reduce_sum(tf.ones_like(losses)) if rows is None else rows
            loss = total / count
            if group:
                loss *= group.size
        return total, *tape.gradient(loss, (features.from_tables, model.trainable_variables))

    return tf.function(compute, jit_compile=True, autograph=False) if block.jit_compile else compute


_OfTables: TypeAlias = "Callable[[list[Tensor | None]], list[Gradient]]"
_Read: TypeAlias = "tuple[Features | ReadFeatures, _OfTables, bool]"
"""The features; a function from the gradients of their `from_tables`, None where no layer used it,
to the gradients of the variables, None for those that were not read; and whether an optimizer must
aggregate these."""


def _read_at_once(block: ClickModel, batch: Batch, variables: Sequence[Variable]) -> _Read:
    """Read what the layers need of a batch by one operation, if the model has one for it."""
    tf, found = compat.tensorflow(), block.read_at_once(batch)
    if found is None:
        return _read(block, batch, variables)
    features, read = found

    def of_reads(gradients: list[Tensor | None]) -> list[Gradient]:
        every = zip(features.from_tables, gradients)
        pairs = read.pairs([tf.zeros_like(x) if g is None else g for x, g in every])
        by_table = {table.ref(): slices for slices, table in pairs}
        return [by_table.get(variable.ref()) for variable in variables]

    return features, of_reads, False


def _read(block: ClickModel, batch: Batch, variables: Sequence[Variable]) -> _Read:
    """Read what the layers need of a batch."""
    tf = compat.tensorflow()
    with tf.GradientTape() as tape:
        features = block.read(batch, training=True)

    def of_lookups(gradients: list[Tensor | None]) -> list[Gradient]:
        used = [(x, g) for x, g in zip(features.from_tables, gradients) if g is not None]
        return tape.gradient([x for x, _ in used], variables, [g for _, g in used])

    return features, of_lookups, True


def _sums(ours: Sequence[Gradient], others: Sequence[Gradient]) -> list[Gradient]:
    """Add gradients of the same variables; None stands for no gradient."""
    tf = compat.tensorflow()
    both = [[g for g in pair if g is not None] for pair in zip(ours, others)]
    return [tf.add_n(found) if len(found) > 1 else (*found, None)[0] for found in both]


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
