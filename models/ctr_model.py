"""The Merlin model that the four builders return."""

from __future__ import annotations

from typing import Any

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.models.row_sync import SyncedModel, attach, find_cowclip
from cowclip_merlin.optimizer.replica import create_synchronized

tf = compat.tensorflow()
mm = compat.merlin_models()


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class CTRModel(SyncedModel, mm.Model):
    """`merlin.models.tf.Model` whose evaluation, prediction and saving see current tables."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        with tf.variable_creator_scope(create_synchronized):
            super().__init__(*args, **kwargs)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """As in Keras; CowClip with `update="exact"` is attached to the tables.

        Raises:
            InputError: `jit_compile` with CowClip.
        """
        super().compile(*args, **kwargs)
        if self.jit_compile and find_cowclip(self.optimizer) is not None:
            raise InputError(
                "jit_compile=True: XLA has no operation that counts ids, so CowClip cannot be "
                "compiled by it; leave jit_compile out"
            )
        attach(self, self.optimizer)

    def fit(self, *args: Any, train_metrics_steps: int = 1, **kwargs: Any) -> Any:
        """As in Merlin.

        Raises:
            InputError: `train_metrics_steps` with several replicas.
        """
        if train_metrics_steps != 1 and self.distribute_strategy.num_replicas_in_sync > 1:
            raise InputError(
                f"train_metrics_steps={train_metrics_steps}: with several replicas metrics are "
                "computed at every step; leave it out, or compile without metrics"
            )
        return super().fit(*args, train_metrics_steps=train_metrics_steps, **kwargs)

    def train_compute_metrics(self, outputs: Any, compiled_metrics: Any) -> dict[str, Any]:
        """As in Merlin, whose `tf.cond` around metrics no strategy with several replicas takes."""
        if tf.distribute.get_strategy().num_replicas_in_sync > 1:
            return self.compute_metrics(outputs, compiled_metrics)
        return super().train_compute_metrics(outputs, compiled_metrics)

    def save(self, export_path: Any, *args: Any, **kwargs: Any) -> Any:
        """As in Merlin, tables up to date; what is saved holds nothing of the optimizer's.

        Keras's `overwrite` and `options`, which `ModelCheckpoint` gives, are taken as well.
        """
        with self.flushed_and_detached():
            if not {"overwrite", "options"} & set(kwargs):
                return super().save(export_path, *args, **kwargs)
            return compat.save_by_keras(self, export_path, *args, **kwargs)

    def export(self, *args: Any, **kwargs: Any) -> Any:
        """As in Keras, from TensorFlow 2.13 on, tables up to date."""
        with self.flushed_and_detached():
            return super().export(*args, **kwargs)
