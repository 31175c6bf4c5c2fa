"""Train the MLP alone (forward, backward and Adam), as the reference speed of benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cowclip_merlin.bench.random_data import CONTINUOUS, NUM_FIELDS
from cowclip_merlin.types import Array, Tensor, Variable

TrainFunction = Callable[[Tensor, int], Variable]
"""Trains on rows, int [n], in batches of a size; returns the variable of its loss sum."""


def bare_mlp_train_function(batch: int, jit_compile: bool = False) -> TrainFunction:
    """Return a train function, like that of a model, for the models' MLP on Criteo-like columns."""
    run, loss_sum = make_mlp_train_function(
        batch, inputs=NUM_FIELDS * 10 + CONTINUOUS, jit_compile=jit_compile
    )

    def train(rows: Array, batch: int) -> Variable:
        run(len(rows) // batch)
        return loss_sum

    return train


def make_mlp_train_function(
    batch: int,
    *,
    inputs: int,
    widths: Sequence[int] = (400, 400, 400),
    lr: float = 0.001,
    jit_compile: bool = False,
) -> tuple[Callable[[int], None], Variable]:
    """Return a function that trains an MLP for a number of steps, and the variable of its loss sum.

    The MLP trains on constant input.
    """
    from cowclip_merlin import compat

    tf = compat.tensorflow()
    hidden = [tf.keras.layers.Dense(width, activation="relu") for width in widths]
    mlp = tf.keras.Sequential([*hidden, tf.keras.layers.Dense(1)])
    adam = tf.keras.optimizers.legacy.Adam(lr)
    x = tf.random.stateless_normal([batch, inputs], seed=(0, 0))
    y, loss_sum = tf.zeros([batch, 1]), tf.Variable(0.0)
    mlp.build(x.shape)
    adam._create_all_weights(mlp.trainable_variables)  # a loop in a graph cannot create variables

    @tf.function(jit_compile=jit_compile, autograph=False)
    def loss_and_gradients() -> tuple[Tensor, list[Tensor]]:
        with tf.GradientTape() as tape:
            losses = tf.nn.sigmoid_cross_entropy_with_logits(y, mlp(x, training=True))
            loss = tf.reduce_mean(losses)
        return loss, tape.gradient(loss, mlp.trainable_variables)

    def step() -> None:
        loss, gradients = loss_and_gradients()
        adam.apply_gradients(zip(gradients, mlp.trainable_variables))
        loss_sum.assign_add(loss)

    def counted_step(done: Tensor) -> Tensor:
        step()
        return done + 1

    @tf.function(input_signature=[tf.TensorSpec([], tf.int32)], autograph=False)
    def run(steps: Tensor) -> None:
        tf.while_loop(lambda done: done < steps, counted_step, [0])

    return run, loss_sum
