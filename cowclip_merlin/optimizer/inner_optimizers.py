"""Build and check the two Keras optimizers inside a CowClip."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import MethodType
from typing import TYPE_CHECKING

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.optimizer.config import refuse_aggregators, row_optimizer
from cowclip_merlin.optimizer.decoupled import dense_optimizer
from cowclip_merlin.optimizer.row_optimizers import LazyAdam, RowWiseAdagrad
from cowclip_merlin.types import (
    DType,
    JsonObject,
    KerasOptimizer,
    LearningRateSchedule,
    Tensor,
)

if TYPE_CHECKING:
    from cowclip_merlin.scaling import Hyperparameters

tf = compat.tensorflow()


def inner_optimizers(
    embedding: KerasOptimizer | str | JsonObject,
    dense: KerasOptimizer | str | JsonObject,
    *,
    update: str,
    link_rates: bool,
    outer: type,
) -> tuple[KerasOptimizer, KerasOptimizer]:
    """Return the embedding optimizer and the dense optimizer, both legacy Keras optimizers.

    Args:
        embedding: an optimizer, its name or its serialized form.
        dense: the same, for all other weights.
        update: argument of `CowClip`; for "lazy", the embedding optimizer updates only the
            rows in the batch.
        link_rates: argument of `CowClip`.
        outer: the class of the optimizer around both, which must not wrap itself.

    Raises:
        InputError: if one of them is or wraps a CowClip, both are the same object, or one has a
            custom gradient aggregation.
    """
    # HDF5 files store the class name without the package that registers it.
    names = {"RowAdam": LazyAdam, "LazyAdam": LazyAdam, "RowWiseAdagrad": RowWiseAdagrad}
    with tf.keras.utils.custom_object_scope(names):
        embedding = compat.legacy_optimizer(embedding)
    dense = dense_optimizer(dense)
    for role, optimizer in (("embedding_optimizer", embedding), ("dense_optimizer", dense)):
        if any(isinstance(each, outer) for each in optimizers_in(optimizer)):
            raise InputError(
                f"{role} is or holds a CowClip, but a gradient must be clipped once: give a "
                "Keras optimizer such as tf.keras.optimizers.legacy.Adam(1e-4)"
            )
    if embedding is dense:
        raise InputError(
            "embedding_optimizer and dense_optimizer are one object, which would count each "
            "step twice; give two different optimizers"
        )
    if isinstance(dense, RowWiseAdagrad):
        raise InputError(
            "dense_optimizer is RowWiseAdagrad, which is for tables: give another one, such as "
            "tf.keras.optimizers.legacy.Adagrad(0.01)"
        )
    refuse_aggregators(embedding, dense)
    if update == "lazy":
        embedding = row_optimizer(embedding)
    if link_rates:
        _link_rates(embedding, dense)
    return embedding, dense


_FIRST_RATE = "first_dense_rate"  # of the dense optimizer; a checkpoint has it, as all rates


def _link_rates(embedding: KerasOptimizer, dense: KerasOptimizer) -> None:
    """Multiply the embedding rate by what the dense rate has become of its first value.

    Schedules are not linked: each optimizer follows its own.
    """
    rates = [each._hyper["learning_rate"] for each in (embedding, dense)]
    if any(callable(rate) for rate in rates) or float(rates[1]) == 0:
        return
    embedding.rate_leader, dense.rate_follower = dense, embedding
    embedding._set_hyper(_FIRST_RATE, float(rates[1]))
    # Methods are copied with their owner.
    embedding._decayed_lr = MethodType(_linked_rate, embedding)
    embedding._set_hyper = MethodType(_set_follower, embedding)
    dense._set_hyper = MethodType(_set_leader, dense)


def _linked_rate(self: KerasOptimizer, dtype: DType) -> Tensor:
    return type(self)._decayed_lr(self, dtype) * rate_factor(self, dtype)


def _set_follower(self: KerasOptimizer, name: str, value: object) -> None:
    """Set a number of the embedding optimizer; its learning rate is the one of now."""
    if name == "learning_rate" and not callable(value):
        value = float(value) / (_factor_now(self) or 1.0)
    type(self)._set_hyper(self, name, value)


def _set_leader(self: KerasOptimizer, name: str, value: object) -> None:
    """Set a number of the dense optimizer, whose learning rate then moves no other."""
    follower = self.rate_follower
    rate, factor = follower._hyper["learning_rate"], _factor_now(follower)
    type(self)._set_hyper(self, name, value)
    if name == "learning_rate" and not callable(value) and not callable(rate):
        type(follower)._set_hyper(follower, "learning_rate", float(rate) * factor)
        type(follower)._set_hyper(follower, _FIRST_RATE, float(value))


def _factor_now(embedding: KerasOptimizer) -> float:
    """Return `rate_factor` without creating the variables of the optimizers."""
    known = (embedding.rate_leader._hyper["learning_rate"], embedding._hyper["learning_rate"])
    first = float(embedding._hyper[_FIRST_RATE])
    return 1.0 if first == 0 or any(map(callable, known)) else float(known[0]) / first


def rate_factor(embedding: KerasOptimizer, dtype: DType) -> Tensor:
    """Return what the dense rate has become of its first value; 1 if the rates are not linked."""
    leader = getattr(embedding, "rate_leader", None)
    if leader is None or any(callable(x._hyper["learning_rate"]) for x in (embedding, leader)):
        return tf.ones([], dtype)
    rate = tf.cast(leader._get_hyper("learning_rate", dtype), dtype)
    first = tf.cast(embedding._get_hyper(_FIRST_RATE, dtype), dtype)
    return tf.where(first == 0, tf.ones_like(first), rate / first)  # 0: see `_set_leader`


def optimizers_in(optimizer: KerasOptimizer) -> Iterator[KerasOptimizer]:
    """Yield this optimizer and the optimizers that it wraps."""
    yield optimizer
    inner = [getattr(optimizer, name, None) for name in ("inner_optimizer", "default_optimizer")]
    inner += [pair.optimizer for pair in getattr(optimizer, "optimizers_and_blocks", [])]
    for each in inner:
        yield from () if each is None else optimizers_in(each)


def refused_setting(name: str) -> property:
    """Return a property that refuses a setting of Keras's optimizers that CowClip ignores.

    Raises:
        InputError: if the setting gets a value.
    """
    base = getattr(tf.keras.optimizers.legacy.Optimizer, name)

    def refuse(self: KerasOptimizer, value: float | None) -> None:
        if value is None:
            base.fset(self, value)  # Keras's constructor sets None
        else:
            raise InputError(
                f"CowClip does not follow {name}: give it to dense_optimizer or "
                "embedding_optimizer, which clip what they are given"
            )

    return property(base.fget, refuse, doc=f"None: `{name}` belongs to the two optimizers.")


def refuse_one_rate(config: JsonObject) -> None:
    """Refuse a configuration with a single learning rate, as Merlin makes it for Horovod.

    Raises:
        InputError: if the configuration has one.
    """
    if {"lr", "learning_rate"} & set(config):
        raise InputError(
            "CowClip has two learning rates, of embedding_optimizer and dense_optimizer; for "
            "several GPUs use tf.distribute, since Horovod is not supported"
        )


def keras_2_words(optimizer: str) -> str:
    """Return the description of an optimizer that Keras 3 quotes when it refuses it."""
    return (
        f"<{optimizer}, an optimizer of Keras 2, which Keras 3 cannot use: "
        "import cowclip_merlin, then `from tensorflow import keras` instead of `import keras`>"
    )


def optimizers_of(
    values: Hyperparameters,
    warmup: int,
    *,
    adam: type[KerasOptimizer] | None = None,
    schedule: Callable[[float | LearningRateSchedule], LearningRateSchedule] | None = None,
) -> tuple[KerasOptimizer, KerasOptimizer]:
    """Build an optimizer for the embeddings and one for the dense weights.

    Args:
        values: hyper-parameters.
        warmup: steps over which the dense learning rate rises from 0.
        adam: subclass of Keras's legacy Adam; by default that class.
        schedule: changes both rates; None: they stay.
    """
    rates = [values.embedding_lr, warmup_schedule(values.dense_lr, warmup)]
    rates = [schedule(rate) for rate in rates] if schedule else rates
    legacy, shared = tf.keras.optimizers.legacy, {"epsilon": values.epsilon}
    if values.optimizer == "adam":
        kinds = [adam or legacy.Adam] * 2
        shared |= {"beta_1": values.beta_1, "beta_2": values.beta_2}
    else:
        row_wise = values.optimizer == "rowwise_adagrad"
        kinds = [RowWiseAdagrad if row_wise else legacy.Adagrad, legacy.Adagrad]
        shared |= {"initial_accumulator_value": values.initial_accumulator}
    embedding, dense = (kind(rate, **shared) for kind, rate in zip(kinds, rates))
    return embedding, dense


def warmup_steps(values: Hyperparameters, steps_per_epoch: int) -> int:
    """Convert the warm-up from epochs to steps.

    Raises:
        InputError: if the warm-up takes 2**31 steps or more.
    """
    epochs = values.warmup_epochs or 0
    if epochs * steps_per_epoch >= 2**31:
        raise InputError(f"warmup_epochs is {epochs:g}, which is too long; use a smaller one")
    return round(epochs * steps_per_epoch)


def warmup_schedule(rate: float, steps: int) -> float | LearningRateSchedule:
    """Return a learning rate that rises linearly from 0 to `rate` over `steps` steps, then stays.

    >>> float(warmup_schedule(0.1, 10)(5))
    0.05000000074505806
    """
    if steps < 1:
        return rate
    schedules = tf.keras.optimizers.schedules
    return schedules.PolynomialDecay(0.0, steps, end_learning_rate=rate, power=1.0)
