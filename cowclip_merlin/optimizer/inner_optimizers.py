"""The two Keras optimizers inside a CowClip, and what Keras asks of one that wraps them."""

from __future__ import annotations

import sys
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from types import MethodType
from typing import TYPE_CHECKING

from cowclip_merlin import compat
from cowclip_merlin.choices import contributed
from cowclip_merlin.errors import InputError
from cowclip_merlin.optimizer.config import Config, refuse_aggregators, row_optimizer
from cowclip_merlin.optimizer.embedding_tables import EmbeddingTables
from cowclip_merlin.optimizer.row_optimizers import LazyAdam, RowWiseAdagrad
from cowclip_merlin.types import (
    Array,
    DType,
    JsonObject,
    KerasOptimizer,
    LearningRateSchedule,
    Tensor,
    Variable,
)

if TYPE_CHECKING:
    from cowclip_merlin.scaling import Hyperparameters

tf = compat.tensorflow()


def _refused_setting(name: str) -> property:
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


class WrappingOptimizer(tf.keras.optimizers.legacy.Optimizer):
    """Base of `CowClip`: learning rate, counters, slots, weights and configuration.

    Attributes:
        embedding_optimizer: optimizer of the tables.
        dense_optimizer: optimizer of all other weights.
        tables: the embedding tables, which of them are clipped, and their fields.
        reserved_rows: rows that a growing table reserves, most of them without values; or None.
    """

    tables: EmbeddingTables
    reserved_rows: int | None = None

    def __init__(
        self,
        name: str,
        embedding_optimizer: KerasOptimizer | str | JsonObject,
        dense_optimizer: KerasOptimizer | str | JsonObject,
        *,
        asked: Config,
        link_rates: bool,
    ) -> None:
        super().__init__(name)
        self._asked, self._link_rates = asked, link_rates
        embedding, dense = _inner_optimizers(embedding_optimizer, dense_optimizer)
        self.embedding_optimizer = row_optimizer(embedding) if asked.update == "lazy" else embedding
        self.dense_optimizer = dense
        if link_rates:
            _link_rates(self.embedding_optimizer, dense)
        for role, optimizer in self._by_role().items():
            self._track_trackable(optimizer, role)

    def _by_role(self) -> dict[str, KerasOptimizer]:
        return {name: getattr(self, name) for name in ("embedding_optimizer", "dense_optimizer")}

    @abstractmethod
    def flush(self) -> None:
        """Bring every row of every table up to date."""

    @property
    def learning_rate(self) -> Variable | LearningRateSchedule:
        """The dense optimizer's learning rate: a variable or a schedule.

        With `link_rates`, a new value also changes the embedding rate, by the same factor.
        """
        return self.dense_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Tensor) -> None:
        dense = self.dense_optimizer
        type(dense)._set_hyper(dense, "learning_rate", value)  # the embedding rate follows

    lr = learning_rate

    @property
    def learning_rates(self) -> tuple[float, float]:
        """The next step's learning rates of the embeddings and of the dense weights."""
        parts = (self.embedding_optimizer, self.dense_optimizer)
        embedding_lr, dense_lr = (float(each._decayed_lr(tf.float32)) for each in parts)
        return embedding_lr, dense_lr

    clipnorm = _refused_setting("clipnorm")
    clipvalue = _refused_setting("clipvalue")
    global_clipnorm = _refused_setting("global_clipnorm")

    @property
    def iterations(self) -> Variable:
        """Number of steps. The inner optimizers have their own counters for their schedules."""
        return super().iterations

    @iterations.setter
    def iterations(self, _: Variable) -> None:
        raise InputError(
            "the counters of CowClip cannot be replaced: assign to iterations, "
            "embedding_optimizer.iterations and dense_optimizer.iterations"
        )

    @property
    def weights(self) -> list[Variable]:
        """Own counters, then the embedding optimizer's and the dense optimizer's variables."""
        return self._weights + self.embedding_optimizer.weights + self.dense_optimizer.weights

    def variables(self) -> list[Variable]:
        """Return `weights`: Keras's method leaves out the variables of the inner optimizers."""
        return self.weights

    # get_slot_names is not overridden: with it, checkpoints would contain each slot twice.
    def get_slot(self, var: Variable, slot_name: str) -> Variable:
        """Return an inner optimizer's slot of a variable, such as Adam's "m".

        With `update="exact"`, call `flush` first: a row may have missed steps.
        """
        with suppress(KeyError):
            return self.embedding_optimizer.get_slot(var, slot_name)
        return self.dense_optimizer.get_slot(var, slot_name)

    def get_weights(self) -> list[Array]:
        """Return the weights as in Keras, after `flush`, since they leave out missed steps."""
        self._refuse_reserved("get_weights")
        self.flush()
        return super().get_weights()

    def set_weights(self, weights: list[Array]) -> None:
        """Set the weights as in Keras, after `flush`, so that no missed step changes them."""
        self._refuse_reserved("set_weights")
        self.flush()
        super().set_weights(weights)

    def save_own_variables(self, store: MutableMapping[str, Array]) -> None:
        """Write the weights into a `.keras` file; Keras calls this."""
        for i, values in enumerate(self.get_weights()):
            store[str(i)] = values

    def load_own_variables(self, store: Mapping[str, Array]) -> None:
        """Read them from a `.keras` file; warn if the state has another form."""
        try:
            self.set_weights([store[str(i)] for i in range(len(store.keys()))])
        except ValueError as error:
            warnings.warn(
                "the saved model's optimizer state does not fit, so training would begin anew "
                f"({str(error).splitlines()[0]}); go on from a checkpoint",
                stacklevel=2,
            )

    def _refuse_reserved(self, what: str) -> None:
        if self.reserved_rows is not None:
            raise InputError(
                f"{what} of an optimizer of growing tables would take all {self.reserved_rows:,} "
                "reserved rows: use state() and restore() of the GrowingTable"
            )

    def get_config(self) -> JsonObject:
        """Return the arguments as given, with the rates of now; variables raise an error."""
        parts = {k: tf.keras.optimizers.serialize(v) for k, v in self._by_role().items()}
        if (factor := float(rate_factor(self.embedding_optimizer, tf.float32))) != 1:
            parts["embedding_optimizer"]["config"]["learning_rate"] *= factor
        parts |= self._asked.as_dict() | self.tables.get_config()
        return {"name": self._name, "link_rates": self._link_rates} | parts

    @classmethod
    def from_config(
        cls, config: JsonObject, custom_objects: Mapping[str, type] | None = None
    ) -> WrappingOptimizer:
        """Build as in Keras; a single learning rate, as Merlin sets for Horovod, is an error."""
        if {"lr", "learning_rate"} & set(config):
            raise InputError(
                "CowClip has two learning rates, of embedding_optimizer and dense_optimizer; for "
                "several GPUs use tf.distribute, since Horovod is not supported"
            )
        return super().from_config(config, custom_objects=custom_objects)

    def __repr__(self) -> str:
        """Return the settings; beside Keras 3, which quotes them in an error, also the remedy."""
        inner = [f"{k}={type(x).__name__}({_rate(x)})" for k, x in self._by_role().items()]
        thresholds = [f"{name}={value!r}" for name, value in self._asked.as_dict().items()]
        words = f"{type(self).__name__}({', '.join(inner + thresholds)})"
        if getattr(sys.modules.get("keras"), "__version__", "2") < "3":
            return words
        return (
            f"<{words}, an optimizer of Keras 2, which Keras 3 cannot use: import cowclip_merlin, "
            "then `from tensorflow import keras` instead of `import keras`>"
        )


def _rate(optimizer: KerasOptimizer) -> str:
    """Return a learning rate in words: a number, or the kind of a schedule."""
    with tf.init_scope():  # in a graph, a rate has no value
        rate = optimizer._serialize_hyperparameter("learning_rate")
    return rate["class_name"] if isinstance(rate, dict) else f"{rate:g}"


def _inner_optimizers(
    embedding: KerasOptimizer | str | JsonObject, dense: KerasOptimizer | str | JsonObject
) -> tuple[KerasOptimizer, KerasOptimizer]:
    """Return both as legacy Keras optimizers.

    Args:
        embedding: an optimizer, its name or its serialized form.
        dense: the same, for all other weights.

    Raises:
        InputError: if one of them is or wraps a CowClip, both are the same object, or one has a
            custom gradient aggregation.
    """
    # HDF5 files store the class name without the package that registers it.
    names = {"RowAdam": LazyAdam, "LazyAdam": LazyAdam, "RowWiseAdagrad": RowWiseAdagrad}
    with tf.keras.utils.custom_object_scope(names):
        embedding = compat.legacy_optimizer(embedding)
    dense = _dense(dense)
    for role, optimizer in (("embedding_optimizer", embedding), ("dense_optimizer", dense)):
        if any(isinstance(each, WrappingOptimizer) for each in optimizers_in(optimizer)):
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
    return embedding, dense


def _dense(identifier: KerasOptimizer | str | JsonObject) -> KerasOptimizer:
    # Keras has these only as new optimizers, so `contrib` has legacy ones that make the same steps.
    if not isinstance(identifier, tf.keras.optimizers.legacy.Optimizer):
        name, config = name_and_config(identifier)
        if name in ("adamw", "lion") or (name == "adam" and config.get("weight_decay")):
            return contributed("dense_optimizer")(identifier)
    return compat.legacy_optimizer(identifier)


def name_and_config(identifier: object) -> tuple[str, JsonObject]:
    """Return the name of an optimizer's class in lower case, and its arguments that are known."""
    if isinstance(identifier, str):
        return identifier.lower(), {}
    if isinstance(identifier, dict):
        name = str(identifier.get("class_name")).rpartition(">")[2]
        return name.lower(), dict(identifier.get("config") or {})
    is_new = isinstance(identifier, tf.keras.optimizers.Optimizer)
    return type(identifier).__name__.lower(), identifier.get_config() if is_new else {}


def optimizers_in(optimizer: KerasOptimizer) -> Iterator[KerasOptimizer]:
    """Yield this optimizer and the optimizers that it wraps."""
    yield optimizer
    inner = [getattr(optimizer, name, None) for name in ("inner_optimizer", "default_optimizer")]
    inner += [pair.optimizer for pair in getattr(optimizer, "optimizers_and_blocks", [])]
    for each in inner:
        yield from () if each is None else optimizers_in(each)


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
