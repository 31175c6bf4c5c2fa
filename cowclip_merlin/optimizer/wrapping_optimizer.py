"""What Keras asks of an optimizer that wraps one for embeddings and one for the rest."""

from __future__ import annotations

import sys
import warnings
from abc import abstractmethod
from collections.abc import Mapping, MutableMapping
from contextlib import suppress

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.optimizer.config import Config
from cowclip_merlin.optimizer.embedding_tables import EmbeddingTables
from cowclip_merlin.optimizer.inner_optimizers import (
    inner_optimizers,
    keras_2_words,
    rate_factor,
    refuse_one_rate,
    refused_setting,
)
from cowclip_merlin.types import (
    Array,
    JsonObject,
    KerasOptimizer,
    LearningRateSchedule,
    Tensor,
    Variable,
)

tf = compat.tensorflow()


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
        self.embedding_optimizer, self.dense_optimizer = inner_optimizers(
            embedding_optimizer,
            dense_optimizer,
            update=asked.update,
            link_rates=link_rates,
            outer=WrappingOptimizer,
        )
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

    clipnorm = refused_setting("clipnorm")
    clipvalue = refused_setting("clipvalue")
    global_clipnorm = refused_setting("global_clipnorm")

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
        refuse_one_rate(config)
        return super().from_config(config, custom_objects=custom_objects)

    def __repr__(self) -> str:
        """Return the settings; beside Keras 3, which quotes them in an error, also the remedy."""
        inner = [f"{k}={type(x).__name__}({_rate(x)})" for k, x in self._by_role().items()]
        thresholds = [f"{name}={value!r}" for name, value in self._asked.as_dict().items()]
        words = f"{type(self).__name__}({', '.join(inner + thresholds)})"
        if getattr(sys.modules.get("keras"), "__version__", "2") < "3":
            return words
        return keras_2_words(words)


def _rate(optimizer: KerasOptimizer) -> str:
    """Return a learning rate in words: a number, or the kind of a schedule."""
    with tf.init_scope():  # in a graph, a rate has no value
        rate = optimizer._serialize_hyperparameter("learning_rate")
    return rate["class_name"] if isinstance(rate, dict) else f"{rate:g}"
