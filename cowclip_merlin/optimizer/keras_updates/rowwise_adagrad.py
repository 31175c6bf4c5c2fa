"""Row-wise Adagrad: Adagrad with one number of state per row of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cowclip_merlin import compat
from cowclip_merlin.checks import check_not_negative
from cowclip_merlin.types import (
    Initializer,
    JsonObject,
    LearningRateSchedule,
    Operation,
    Tensor,
    Variable,
)

tf = compat.tensorflow()


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class RowWiseAdagrad(tf.keras.optimizers.legacy.Optimizer):
    """Row-wise Adagrad, the optimizer of embedding tables in MLPerf's DLRM and in TorchRec.

    For a row w of a table [N, d] with gradient g, a step adds the mean of the d squares to the
    row's accumulator G, then moves the row: `G += mean(g**2)`, then
    `w -= learning_rate * g / (sqrt(G) + epsilon)`. This is FBGEMM's `EXACT_ROWWISE_ADAGRAD`
    (Mudigere et al., arXiv 2104.05158). A sparse gradient updates only its rows, after equal ids
    are summed.

    Use it as `embedding_optimizer` of `CowClip`. Any variable gets one accumulator per index of
    its first axis, so dense weights should have another optimizer.

    Args:
        learning_rate: a number or a schedule.
        initial_accumulator_value: of each row, at least 0; the default is that of Keras's Adagrad.
        epsilon: added to the root of the accumulator, at least 0.
        name: of the optimizer.
        kwargs: arguments of `tf.keras.optimizers.legacy.Optimizer`, such as `clipnorm`.

    Raises:
        InputError: if the initial value or epsilon is negative.

    >>> w = tf.Variable(tf.ones([3, 2]))
    >>> g = tf.IndexedSlices(tf.constant([[3.0, 4.0]]), tf.constant([1]), tf.constant([3, 2]))
    >>> adagrad = RowWiseAdagrad(1.25, initial_accumulator_value=12.5, epsilon=0.0)
    >>> _ = adagrad.apply_gradients([(g, w)])
    >>> w.numpy().tolist(), adagrad.get_slot(w, "accumulator").numpy().tolist()
    ([[1.0, 1.0], [0.25, 0.0], [1.0, 1.0]], [[12.5], [25.0], [12.5]])
    """

    def __init__(
        self,
        learning_rate: float | LearningRateSchedule = 0.001,
        *,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        name: str = "RowWiseAdagrad",
        **kwargs: Any,
    ) -> None:
        check_not_negative(
            {"initial_accumulator_value": initial_accumulator_value, "epsilon": epsilon}
        )
        super().__init__(name, **kwargs)
        self._set_hyper("learning_rate", kwargs.get("lr", learning_rate))
        self.initial_accumulator_value, self.epsilon = initial_accumulator_value, epsilon

    def _create_slots(self, var_list: list[Variable]) -> None:
        start = tf.keras.initializers.Constant(self.initial_accumulator_value)
        for variable in var_list:
            self.add_slot(variable, "accumulator", start)

    def add_slot(
        self,
        var: Variable,
        slot_name: str,
        initializer: Initializer | str = "zeros",
        shape: Sequence[int] | None = None,
    ) -> Variable:
        """Add the accumulators of a variable: [N, 1] for a table [N, d].

        Args:
            var: the variable.
            slot_name: "accumulator".
            initializer: of the accumulators.
            shape: ignored, as the shape follows from the variable's.
        """
        before, rows = len(self._weights), [*var.shape[:1], *(1 for _ in var.shape[1:])]
        slot = super().add_slot(var, slot_name, initializer, rows)
        # TensorFlow would give a slot in a SavedModel the shape of its variable. So a checkpoint
        # holds it as another variable: by its number, since names of tables depend on the layers
        # made before.
        self._slot_names.clear()
        if len(self._weights) > before:
            self._track_trackable(slot, f"{slot_name}.{len(self._slots) - 1}")
        return slot

    def _resource_apply_dense(
        self, grad: Tensor, var: Variable, apply_state: object = None
    ) -> Operation:
        sums = self.get_slot(var, "accumulator").assign_add(_mean_squares(grad))
        return var.assign_sub(self._scale(sums) * grad, read_value=False)

    def _resource_apply_sparse(
        self, grad: Tensor, var: Variable, indices: Tensor, apply_state: object = None
    ) -> Operation:
        slot = self.get_slot(var, "accumulator")
        sums = tf.gather(slot, indices) + _mean_squares(grad)
        change = -self._scale(sums) * grad
        write, add = tf.raw_ops.ResourceScatterUpdate, tf.raw_ops.ResourceScatterAdd
        return tf.group(
            write(resource=slot.handle, indices=indices, updates=sums),
            add(resource=var.handle, indices=indices, updates=change),
        )

    def _scale(self, sums: Tensor) -> Tensor:
        """Return the factor of a row's gradient; 0 if its accumulator and epsilon are 0."""
        rate = self._decayed_lr(sums.dtype)
        return tf.math.divide_no_nan(rate, tf.sqrt(sums) + self.epsilon)

    def get_config(self) -> JsonObject:
        """Return the arguments as plain values."""
        return super().get_config() | {
            "learning_rate": self._serialize_hyperparameter("learning_rate"),
            "decay": self._initial_decay,
            "initial_accumulator_value": self.initial_accumulator_value,
            "epsilon": self.epsilon,
        }


def _mean_squares(grad: Tensor) -> Tensor:
    """Return the mean square of each row, in the shape of the accumulators."""
    axes = list(range(1, grad.shape.rank))
    return tf.reduce_mean(tf.square(grad), axis=axes, keepdims=True)
