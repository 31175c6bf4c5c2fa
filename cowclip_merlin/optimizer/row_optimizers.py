"""Keras optimizers for embedding tables: Adam of the rows in a batch, and row-wise Adagrad."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from cowclip_merlin import compat
from cowclip_merlin.checks import check_not_negative
from cowclip_merlin.choices import RowSettings
from cowclip_merlin.types import (
    DType,
    Initializer,
    JsonObject,
    LearningRateSchedule,
    Operation,
    Tensor,
    Variable,
)

tf = compat.tensorflow()


_Coefficients: TypeAlias = "dict[tuple[str, DType], dict[str, Tensor]]"
"""What Keras prepares for a step: device and data type -> numbers by name."""


# Saved models of all versions contain this name.
@tf.keras.utils.register_keras_serializable(package="cowclip_merlin", name="RowAdam")
class LazyAdam(tf.keras.optimizers.legacy.Adam):
    """Keras's Adam, but a sparse gradient updates only its own rows and their moments.

    Keras's sparse Adam decays the moments of every row, and updates every row, at every step.
    The ids of a gradient must be distinct.

    >>> w = tf.Variable(tf.zeros([3, 1]))
    >>> g = tf.IndexedSlices(tf.constant([[2.0]]), tf.constant([1]), tf.constant([3, 1]))
    >>> _ = LazyAdam(learning_rate=0.1).apply_gradients([(g, w)])
    >>> [round(float(x), 4) for x in w.numpy()[:, 0]]
    [0.0, -0.1, 0.0]
    """

    squares = 1.0  # factor of squared gradients in the second moments; see `RowSettings`

    def _resource_apply_sparse_duplicate_indices(
        self, grad: Tensor, handle: Variable, indices: Tensor, **kwargs: Any
    ) -> Operation:
        return self._resource_apply_sparse(grad, handle, indices, **kwargs)

    def _resource_apply_sparse(
        self, grad: Tensor, var: Variable, indices: Tensor, apply_state: _Coefficients | None = None
    ) -> Operation:
        device, dtype = var.device, var.dtype.base_dtype
        coefficients = (apply_state or {}).get((device, dtype))
        if coefficients is None:
            coefficients = self._fallback_apply_state(device, dtype)
        m_slot, v_slot = self.get_slot(var, "m"), self.get_slot(var, "v")
        beta_1, beta_2 = coefficients["beta_1_t"], coefficients["beta_2_t"]
        m = beta_1 * tf.gather(m_slot, indices) + (1 - beta_1) * grad
        v = beta_2 * tf.gather(v_slot, indices) + (1 - beta_2) * self.squares * tf.square(grad)
        # "lr" already holds both bias corrections: lr * sqrt(1 - beta2^t) / (1 - beta1^t)
        step = coefficients["lr"] * m / (tf.sqrt(v) + coefficients["epsilon"])
        return tf.group(
            self._resource_scatter_update(m_slot, indices, m),
            self._resource_scatter_update(v_slot, indices, v),
            self._resource_scatter_add(var, indices, -step),
        )

    # Keras's own version then reads the whole variable, which copies it at every step.
    def _resource_scatter_add(self, var: Variable, indices: Tensor, value: Tensor) -> Operation:
        return tf.raw_ops.ResourceScatterAdd(resource=var.handle, indices=indices, updates=value)

    def _resource_scatter_update(self, var: Variable, indices: Tensor, value: Tensor) -> Operation:
        return tf.raw_ops.ResourceScatterUpdate(resource=var.handle, indices=indices, updates=value)


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class VaryingAdam(LazyAdam):
    """LazyAdam whose betas may change from step to step, as the batch size does.

    Keras's bias corrections are powers of the betas. Here they are products of the betas of all
    steps so far. With constant betas, both are the same.

    Attributes:
        moments: betas and `squares` of the steps that are traced now.

    >>> adam, w = VaryingAdam(0.1), tf.Variable([0.0])
    >>> for adam.moments in (RowSettings(), RowSettings(beta_1=0.5, beta_2=0.9)):
    ...     _ = adam.apply_gradients([(tf.constant([2.0]), w)])
    >>> w.numpy().round(4)  # each step moves by the rate, since all gradients are equal
    array([-0.2], dtype=float32)
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config = self.get_config()
        self.moments = RowSettings(beta_1=config["beta_1"], beta_2=config["beta_2"])

    @property
    def squares(self) -> float:  # type: ignore[override]
        """Factor of the squared gradients in the second moments."""
        return self.moments.squares

    def _create_hypers(self) -> None:
        if not self._hypers_created:
            super()._create_hypers()
            self._products = self.add_weight(
                "beta_products", [2], initializer="ones", trainable=False
            )
            self._weights.append(self._products)

    def apply_gradients(self, *args: Any, **kwargs: Any) -> Operation:
        """Make a step as in Keras, with the moments of now."""
        self._advance()
        return super().apply_gradients(*args, **kwargs)

    def next_alpha(self) -> Tensor:
        """Count a step whose rows a kernel updates; return its rate with both bias corrections."""
        self._advance()
        return self._corrected(self._decayed_lr(tf.float32), tf.float32)

    def _advance(self) -> None:
        with tf.init_scope():
            self._create_hypers()
        self._products.assign(self._products * [self.moments.beta_1, self.moments.beta_2])

    def _corrected(self, rate: Tensor, dtype: DType) -> Tensor:
        of_beta_1, of_beta_2 = tf.unstack(tf.cast(self._products, dtype))
        return rate * tf.sqrt(1 - of_beta_2) / (1 - of_beta_1)

    def _prepare_local(self, var_device: str, var_dtype: DType, apply_state: _Coefficients) -> None:
        super()._prepare_local(var_device, var_dtype, apply_state)
        state = apply_state[(var_device, var_dtype)]
        state["lr"] = self._corrected(state["lr_t"], var_dtype)
        powers = tf.unstack(tf.cast(self._products, var_dtype))
        for name, power in zip(("beta_1", "beta_2"), powers):
            beta = tf.constant(getattr(self.moments, name), var_dtype)
            state |= {f"{name}_t": beta, f"{name}_power": power, f"one_minus_{name}_t": 1 - beta}

    def _resource_apply_dense(
        self, grad: Tensor, var: Variable, apply_state: _Coefficients | None = None
    ) -> Operation:
        if self.squares == 1:
            return super()._resource_apply_dense(grad, var, apply_state)
        key = var.device, var.dtype.base_dtype
        now = (apply_state or {}).get(key) or self._fallback_apply_state(*key)
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        squares = self.squares * tf.square(grad)
        new_m = m.assign_add((grad - m) * now["one_minus_beta_1_t"])
        new_v = v.assign_add((squares - v) * now["one_minus_beta_2_t"])
        return var.assign_sub(now["lr"] * new_m / (tf.sqrt(new_v) + now["epsilon"]))


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
