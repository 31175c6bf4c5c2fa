"""AdamW and Lion for the dense weights, as legacy Keras optimizers.

Keras has them only as new optimizers, which CowClip cannot hold. These make the same steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.optimizer.inner_optimizers import name_and_config
from cowclip_merlin.types import JsonObject, KerasOptimizer, LearningRateSchedule, Tensor, Variable

if TYPE_CHECKING:
    import tensorflow

tf = compat.tensorflow()

_REFUSED = ("clipnorm", "clipvalue", "global_clipnorm", "use_ema", "amsgrad")


class _WholeGradients:
    """Takes a sparse gradient as the dense one, since weight decay concerns all weights."""

    def _resource_apply_sparse(
        self,
        grad: Tensor,
        var: Variable,
        indices: Tensor,
        apply_state: Mapping[Any, Any] | None = None,
    ) -> tensorflow.Operation:
        whole = tf.tensor_scatter_nd_add(tf.zeros_like(var), indices[:, None], grad)
        return self._resource_apply_dense(whole, var, apply_state)


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class AdamW(_WholeGradients, tf.keras.optimizers.legacy.Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101, Algorithm 2).

    As in Keras, a step first subtracts `learning_rate * weight_decay * w` from each weight w.

    Args:
        learning_rate: a number or a schedule.
        weight_decay: at least 0.
        kwargs: arguments of `tf.keras.optimizers.legacy.Adam`.

    Raises:
        InputError: if the weight decay is negative.
    """

    def __init__(
        self,
        learning_rate: float | LearningRateSchedule = 1e-3,
        weight_decay: float = 0.004,
        name: str = "AdamW",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, name=name, **kwargs)
        self.weight_decay = _checked_decay(weight_decay)

    def _resource_apply_dense(
        self, grad: Tensor, var: Variable, apply_state: Mapping[Any, Any] | None = None
    ) -> tensorflow.Operation:
        with tf.control_dependencies([_decay(var, self.weight_decay, self._decayed_lr(var.dtype))]):
            return super()._resource_apply_dense(grad, var, apply_state)

    def get_config(self) -> JsonObject:
        """Return the arguments as plain values."""
        return super().get_config() | {"weight_decay": self.weight_decay}


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class Lion(_WholeGradients, tf.keras.optimizers.legacy.Optimizer):
    """Lion (Chen et al., arXiv 2302.06675, Algorithm 2) with decoupled weight decay.

    Args:
        learning_rate: a number or a schedule.
        beta_1: weight of the momentum in the direction of a step, above 0, at most 1.
        beta_2: decay of the momentum per step.
        weight_decay: at least 0; as in `AdamW`.
        kwargs: arguments of `tf.keras.optimizers.legacy.Optimizer`.

    Raises:
        InputError: if the weight decay is negative, or `beta_1` is out of range.
    """

    def __init__(
        self,
        learning_rate: float | LearningRateSchedule = 1e-4,
        beta_1: float = 0.9,
        beta_2: float = 0.99,
        weight_decay: float = 0.0,
        name: str = "Lion",
        **kwargs: Any,
    ) -> None:
        super().__init__(name, **kwargs)
        if not 0 < beta_1 <= 1:
            raise InputError(f"beta_1 is {beta_1}; it must be above 0 and at most 1")
        self._set_hyper("learning_rate", kwargs.get("lr", learning_rate))
        self.beta_1, self.beta_2 = beta_1, beta_2
        self.weight_decay = _checked_decay(weight_decay)

    def _create_slots(self, var_list: list[Variable]) -> None:
        for variable in var_list:
            self.add_slot(variable, "m")

    def _resource_apply_dense(
        self, grad: Tensor, var: Variable, apply_state: Mapping[Any, Any] | None = None
    ) -> tensorflow.Operation:
        rate, m = self._decayed_lr(var.dtype), self.get_slot(var, "m")
        with tf.control_dependencies([_decay(var, self.weight_decay, rate)]):
            direction = tf.sign(m * self.beta_1 + grad * (1 - self.beta_1))
            step = var.assign_sub(rate * direction, read_value=False)
        with tf.control_dependencies([step]):
            return m.assign(m * self.beta_2 + grad * (1 - self.beta_2), read_value=False)

    def get_config(self) -> JsonObject:
        """Return the arguments as plain values."""
        rates = {"learning_rate": self._serialize_hyperparameter("learning_rate")}
        betas = {"beta_1": self.beta_1, "beta_2": self.beta_2}
        decays = {"decay": self._initial_decay, "weight_decay": self.weight_decay}
        return super().get_config() | rates | betas | decays


def _checked_decay(weight_decay: float | None) -> float:
    if weight_decay is not None and weight_decay < 0:
        raise InputError(f"weight_decay is {weight_decay}; it must be at least 0")
    return float(weight_decay or 0.0)


def _decay(var: Variable, weight_decay: float, rate: Tensor) -> tensorflow.Operation:
    if not weight_decay:
        return tf.no_op()
    return var.assign_sub(var * weight_decay * rate, read_value=False)


def dense_optimizer(identifier: object) -> KerasOptimizer:
    """Convert an AdamW, a Lion, or an Adam with `weight_decay` to an optimizer of this module.

    Args:
        identifier: a new Keras 2 optimizer, its name, or its serialized form.

    Raises:
        InputError: if CowClip cannot use it.
    """
    name, config = name_and_config(identifier)
    made = Lion if name == "lion" else AdamW
    _refuse_settings(made.__name__, config, identifier)
    names = {*made().get_config(), "lr"} & set(config)
    rate = config.get("learning_rate")
    if isinstance(rate, dict):
        config["learning_rate"] = tf.keras.optimizers.schedules.deserialize(rate)
    return made(**{each: config[each] for each in names})


def _refuse_settings(name: str, config: JsonObject, identifier: object) -> None:
    """Refuse what these optimizers would ignore."""
    for setting in _REFUSED:
        if config.get(setting):
            raise InputError(f"{name} with {setting} is not supported")
    excluded = ("_exclude_from_weight_decay", "_exclude_from_weight_decay_names")
    if any(getattr(identifier, each, None) for each in excluded):
        raise InputError(
            f"{name}: exclude_from_weight_decay is not supported; all dense weights decay"
        )
