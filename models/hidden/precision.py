"""Set the precision in which the hidden and cross layers of a model compute."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cowclip_merlin import compat

tf = compat.tensorflow()


def current_policy() -> str:
    """Return the name of Keras's current policy for new layers."""
    return tf.keras.mixed_precision.global_policy().name


@contextmanager
def computing_in(precision: str) -> Iterator[None]:
    """Make layers that are created in this block compute in this precision.

    Weights are always float32; so are tables, logits and probabilities of the five models.

    Args:
        precision: "float32", "bfloat16", "float16", or the name of a Keras policy.

    >>> with computing_in("bfloat16"):
    ...     dense = tf.keras.layers.Dense(1)
    >>> dense.compute_dtype, dense.dtype
    ('bfloat16', 'float32')
    """
    before = current_policy()
    mixed = f"mixed_{precision}" if precision in ("bfloat16", "float16") else precision
    tf.keras.mixed_precision.set_global_policy(mixed)
    try:
        yield
    finally:
        tf.keras.mixed_precision.set_global_policy(before)
