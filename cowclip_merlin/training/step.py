"""One training step as a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cowclip_merlin import compat

if TYPE_CHECKING:
    from cowclip_merlin.loading import Data


def make_step(model: Any, optimizer: Any, data: Data, loss_sum: Any) -> Any:
    """One training step as a graph: a batch of `data` in, weights moved, loss summed.

    The loss is the mean binary cross-entropy of the batch, computed from logits.
    """
    from cowclip_merlin import models

    tf = compat.tensorflow()
    models.attach(model, optimizer)

    @tf.function(input_signature=[data.signature])
    def step(batch: Any) -> None:
        inputs, label = data.take(batch)
        with tf.GradientTape() as tape:
            z = models.logits(model, inputs, training=True)[:, 0]
            losses = tf.nn.sigmoid_cross_entropy_with_logits(label, z)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        loss_sum.assign_add(tf.cast(tf.reduce_sum(losses), tf.float64))

    return step
