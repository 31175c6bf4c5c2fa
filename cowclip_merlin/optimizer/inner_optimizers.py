"""The two Keras optimizers inside a CowClip: how they are made, and which are refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.optimizer.config import refuse_aggregators, row_optimizer
from cowclip_merlin.optimizer.lazy_adam import LazyAdam

tf = compat.tensorflow()


class InnerOptimizers:
    """The embedding optimizer and the dense optimizer, both of Keras's legacy kind.

    Args:
        embedding: an optimizer, its name or its serialized form.
        dense: the same, of all other weights.
        update: as asked for; for "lazy" the embedding optimizer touches only rows of the batch.
        outer: `CowClip`, which must not be inside itself.

    Raises:
        InputError: one of them is or holds a CowClip, they are one object, or one sums over
            replicas in a way of its own.
    """

    def __init__(self, embedding: Any, dense: Any, *, update: str, outer: type) -> None:
        # Files of HDF5 write the class without the package that it is registered under.
        with tf.keras.utils.custom_object_scope({"RowAdam": LazyAdam, "LazyAdam": LazyAdam}):
            self.embedding = compat.legacy_optimizer(embedding)
        self.dense = compat.legacy_optimizer(dense)
        for role, optimizer in self._by_role().items():
            if any(isinstance(each, outer) for each in optimizers_in(optimizer)):
                raise InputError(
                    f"{role} is or holds a CowClip, and a gradient is to be clipped once: give a "
                    "Keras optimizer such as tf.keras.optimizers.legacy.Adam(1e-4)"
                )
        if self.embedding is self.dense:
            raise InputError(
                "embedding_optimizer and dense_optimizer are one object, which would count each "
                "step twice; give two"
            )
        refuse_aggregators(self.embedding, self.dense)
        if update == "lazy":
            self.embedding = row_optimizer(self.embedding)

    @property
    def both(self) -> tuple[Any, Any]:
        """The embedding optimizer and the dense optimizer."""
        return self.embedding, self.dense

    def _by_role(self) -> dict[str, Any]:
        return {"embedding_optimizer": self.embedding, "dense_optimizer": self.dense}

    @property
    def weights(self) -> list[Any]:
        """The embedding optimizer's variables, then the dense optimizer's."""
        return self.embedding.weights + self.dense.weights

    def get_slot(self, variable: Any, name: str) -> Any:
        """The state that one of the two keeps beside a variable.

        Raises:
            KeyError: neither has made it.
        """
        with suppress(KeyError):
            return self.embedding.get_slot(variable, name)
        return self.dense.get_slot(variable, name)

    def create_counters(self) -> None:
        """Create the counters of steps, which Keras creates on first access."""
        for role, optimizer in self._by_role().items():
            # Both are called "iter", and a file of HDF5 takes each name once.
            with tf.name_scope(role):
                _ = optimizer.iterations

    def create_slots(self, variables: list[Any], *, tables: bool) -> None:
        """Create the state of these variables, which are all tables or all none."""
        optimizer = self.embedding if tables else self.dense
        if variables:
            optimizer._create_all_weights(variables)
        else:  # all of the above but the slots, which Nadam cannot make of no variable
            optimizer._create_hypers()

    def get_config(self) -> dict[str, Any]:
        """Both as plain values."""
        return {k: tf.keras.optimizers.serialize(v) for k, v in self._by_role().items()}


def optimizers_in(optimizer: Any) -> Iterator[Any]:
    """This optimizer, and those that it scales losses for or shares the variables with."""
    yield optimizer
    inner = [getattr(optimizer, name, None) for name in ("inner_optimizer", "default_optimizer")]
    inner += [pair.optimizer for pair in getattr(optimizer, "optimizers_and_blocks", [])]
    for each in inner:
        yield from () if each is None else optimizers_in(each)


def refused_setting(name: str) -> property:
    """A setting of Keras's optimizers that no step of a CowClip would follow.

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

    return property(base.fget, refuse, doc=f"None: `{name}` belongs to the two optimizers.")


def refuse_one_rate(config: dict[str, Any]) -> None:
    """Refuse a configuration with one learning rate, as Merlin makes it for Horovod.

    Raises:
        InputError: it has one.
    """
    if {"lr", "learning_rate"} & set(config):
        raise InputError(
            "CowClip has two learning rates, of embedding_optimizer and dense_optimizer; for "
            "several GPUs use tf.distribute, since Horovod is not supported"
        )


def keras_2_words(optimizer: Any) -> str:
    """What an optimizer is, and how to use it, for Keras 3 to quote when it refuses it."""
    return (
        f"<{type(optimizer).__name__}, an optimizer of Keras 2, which Keras 3 cannot use: "
        "import cowclip_merlin, then `from tensorflow import keras` instead of `import keras`>"
    )
