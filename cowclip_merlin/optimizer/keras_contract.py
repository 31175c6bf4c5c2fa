"""What Keras asks of an optimizer, for one that holds two: one for tables and one for the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.optimizer import embedding_variables
from cowclip_merlin.optimizer.clip_statistics import ClipStatistics

tf = compat.tensorflow()


def cowclips_in(optimizer: Any) -> Iterator[Any]:
    """This optimizer if it is a CowClip, or those that it scales losses for, or shares with."""
    if isinstance(optimizer, TwoOptimizers):
        yield optimizer
        return
    inner = [getattr(optimizer, name, None) for name in ("inner_optimizer", "default_optimizer")]
    inner += [pair.optimizer for pair in getattr(optimizer, "optimizers_and_blocks", [])]
    for each in inner:
        yield from () if each is None else cowclips_in(each)


def _of_the_two(name: str) -> property:
    """A setting of Keras's optimizers that no step of the whole would follow.

    Raises:
        InputError: it is given a value.
    """

    base = getattr(tf.keras.optimizers.legacy.Optimizer, name)

    def refuse(self: Any, value: Any) -> None:
        if value is None:
            base.fset(self, value)  # Keras's constructor sets it so
        else:
            raise InputError(
                f"CowClip does not follow {name}: give it to dense_optimizer or "
                "embedding_optimizer, which clip what they are given"
            )

    return property(base.fget, refuse, doc=f"None: `{name}` is of the two optimizers.")


class TwoOptimizers(ClipStatistics):
    """Learning rate, counters, weights and configuration; `CowClip` has the step.

    Attributes:
        embedding_optimizer: a legacy Keras optimizer.
        dense_optimizer: a legacy Keras optimizer.
    """

    def __repr__(self) -> str:
        """What Keras 3 quotes when it refuses this optimizer."""
        return (
            f"<{type(self).__name__}, an optimizer of Keras 2, which Keras 3 cannot use: "
            "import cowclip_merlin, then `from tensorflow import keras` instead of `import keras`>"
        )

    @property
    def learning_rate(self) -> Any:
        """The dense optimizer's learning rate: a variable or a schedule."""
        return self.dense_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.dense_optimizer.learning_rate = value

    lr = learning_rate
    clipnorm = _of_the_two("clipnorm")
    clipvalue = _of_the_two("clipvalue")
    global_clipnorm = _of_the_two("global_clipnorm")

    @property
    def iterations(self) -> Any:
        """Steps made. The two optimizers inside count theirs, which their schedules follow."""
        return super().iterations

    @iterations.setter
    def iterations(self, _: Any) -> None:
        raise InputError(
            "the counters of CowClip cannot be replaced: assign to iterations, "
            "embedding_optimizer.iterations and dense_optimizer.iterations"
        )

    @property
    def weights(self) -> list[Any]:
        """Own counters, then the embedding optimizer's and the dense optimizer's variables."""
        return self._weights + self.embedding_optimizer.weights + self.dense_optimizer.weights

    def variables(self) -> list[Any]:
        """The same: Keras's own would leave out what is in the two optimizers."""
        return self.weights

    # Not get_slot_names, too: checkpoints would then hold each slot a second time.
    def get_slot(self, var: Any, slot_name: str) -> Any:
        """The state that one of the two optimizers keeps beside a variable, such as Adam's "m".

        With `update="exact"` call `flush` first: a row may not have made all its steps yet.

        Args:
            var: the variable.
            slot_name: as in Keras, "m" or "v" of Adam.

        Raises:
            KeyError: neither optimizer has made it, as before the first step.
        """
        with suppress(KeyError):
            return self.embedding_optimizer.get_slot(var, slot_name)
        return self.dense_optimizer.get_slot(var, slot_name)

    def get_weights(self) -> list[Any]:
        """As in Keras, rows up to date: what they owe is not among these."""
        self.flush()
        return super().get_weights()

    def set_weights(self, weights: list[Any]) -> None:
        """As in Keras; steps that rows had missed do not move what is set."""
        self.flush()
        super().set_weights(weights)

    def _create_all_weights(self, var_list: Iterable[Any]) -> None:
        """Create all state for these variables (Keras calls it before it loads weights)."""
        known = self._config.embeddings
        groups: dict[bool, list[Any]] = {True: [], False: []}
        for v in var_list:
            groups[
                embedding_variables.looks_like_table(v)
                if known is None
                else embedding_variables.matches(v, known)
            ].append(v)
        for is_table, group in groups.items():
            self._create_state(group, is_table)

    def _create_own_weights(self) -> None:
        _ = self.iterations  # created on first access
        for optimizer in ("embedding_optimizer", "dense_optimizer"):
            # All three are called "iter", and a file of HDF5 takes each name once.
            with tf.name_scope(optimizer):
                _ = getattr(self, optimizer).iterations
        super()._create_own_weights()

    def _create_state(self, variables: list[Any], is_table: bool) -> None:
        """Own counters, the inner optimizer's slots, and what the row engine keeps."""
        self._create_own_weights()
        optimizer = self.embedding_optimizer if is_table else self.dense_optimizer
        if variables:
            optimizer._create_all_weights(variables)
        else:  # all of the above but the slots, which Nadam cannot make of no variable
            optimizer._create_hypers()
        for table in variables if is_table and self._states else ():
            self._states.state_of(table)

    def get_config(self) -> dict[str, Any]:
        """Settings as plain values.

        Raises:
            InputError: `skip` or `embeddings` hold variables, which cannot be written down.
        """
        return {
            "name": self._name,
            "embedding_optimizer": tf.keras.optimizers.serialize(self.embedding_optimizer),
            "dense_optimizer": tf.keras.optimizers.serialize(self.dense_optimizer),
            **self._config.as_dict(),
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Mapping[str, Any] | None = None
    ) -> Any:
        """The optimizer of these settings.

        Raises:
            InputError: the configuration has one learning rate, as Merlin makes it for Horovod.
        """
        if {"lr", "learning_rate"} & set(config):
            raise InputError(
                "CowClip has two learning rates, of embedding_optimizer and dense_optimizer; for "
                "several GPUs use tf.distribute, since Horovod is not supported"
            )
        return super().from_config(config, custom_objects=custom_objects)
