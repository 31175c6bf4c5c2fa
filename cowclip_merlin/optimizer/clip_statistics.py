"""What an optimizer says of the clip in its last step."""

from __future__ import annotations

from typing import Any

from cowclip_merlin import compat

tf = compat.tensorflow()


def summarize(factors: list[Any]) -> tuple[Any, Any] | None:
    """Share of rows clipped and mean factor, scalars; None without tables.

    Args:
        factors: of the batch's rows, one tensor [u] per table.

    >>> [float(x) for x in summarize([tf.constant([1.0, 0.5]), tf.constant([1.0, 0.5])])]
    [0.5, 0.75]
    """
    if not factors:
        return None
    present = tf.concat([tf.cast(f, tf.float32) for f in factors], 0)
    total = tf.cast(tf.size(present), tf.float32)
    cut = tf.reduce_sum(tf.cast(present < 1, tf.float32))
    share = tf.math.divide_no_nan(cut, total)
    return share, tf.math.divide_no_nan(tf.reduce_sum(present), total)


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

    def _record(self, summary: tuple[Any, Any] | None) -> None:
        """Keep what `summarize` says of the last step."""
        if summary is not None:
            self.clipped_share.assign(summary[0])
            self.mean_clip_factor.assign(summary[1])
