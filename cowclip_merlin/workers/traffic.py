"""Count the bytes that a worker sends to the others."""

from __future__ import annotations

from cowclip_merlin import compat
from cowclip_merlin.types import Tensor, Variable


class Traffic:
    """Bytes that this worker has sent in training, counted from the shapes of what it sends.

    Counting is a part of the graphs, since the sizes are known only when a step runs.
    """

    def __init__(self) -> None:
        self._sent: Variable | None = None

    def add(self, sent: int | Tensor) -> None:
        """Count bytes, a number or an integer tensor."""
        tf = compat.tensorflow()
        if self._sent is None:
            with tf.init_scope(), tf.device("CPU:0"):  # outside of any graph
                self._sent = tf.Variable(0, dtype=tf.int64, trainable=False, name="bytes_sent")
        self._sent.assign_add(tf.cast(sent, tf.int64))

    @property
    def sent(self) -> int:
        """Bytes so far."""
        return 0 if self._sent is None else int(self._sent.numpy())
