"""What an optimizer says of the clip in its last step."""

from __future__ import annotations

from typing import Any

from cowclip_merlin import compat

tf = compat.tensorflow()


class ClipStatistics(tf.keras.optimizers.legacy.Optimizer):
    """A Keras optimizer with two variables for logging, kept in checkpoints like its others."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._statistics: dict[str, Any] = {}

    @property
    def clipped_share(self) -> Any:
        """Share of the batch's distinct rows that the last step clipped, scalar variable."""
        self._create_own_weights()
        return self._statistics["clipped_share"]

    @property
    def mean_clip_factor(self) -> Any:
        """Mean factor of the batch's distinct rows in the last step, scalar variable."""
        self._create_own_weights()
        return self._statistics["mean_clip_factor"]

    def _create_own_weights(self) -> None:
        for name in ("clipped_share", "mean_clip_factor"):
            if name not in self._statistics:
                self._statistics[name] = self.add_weight(
                    name,
                    [],
                    dtype=tf.float32,
                    trainable=False,
                    synchronization=tf.VariableSynchronization.ON_READ,
                    aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
                )

    def _record(self, factors: list[Any]) -> None:
        """Keep what is logged of the factors of the batch's rows, one tensor per table."""
        if not factors:
            return
        present = tf.concat([tf.cast(f, tf.float32) for f in factors], 0)
        total = tf.cast(tf.size(present), tf.float32)
        cut = tf.reduce_sum(tf.cast(present < 1, tf.float32))
        self.clipped_share.assign(tf.math.divide_no_nan(cut, total))
        self.mean_clip_factor.assign(tf.math.divide_no_nan(tf.reduce_sum(present), total))
