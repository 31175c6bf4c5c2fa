"""Merlin model that keeps its tables up to date; the five builders return it."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from cowclip_merlin import compat
from cowclip_merlin.compat.tensorflow_names import safe_names
from cowclip_merlin.errors import InputError
from cowclip_merlin.models.row_sync import SyncedModel, attach, find_cowclip
from cowclip_merlin.optimizer.exchange.replica import create_synchronized
from cowclip_merlin.types import Array, Tensor, TensorShape

if TYPE_CHECKING:
    import os

    from merlin.models.tf.core.prediction import Prediction
    from tf_keras.callbacks import History
    from tf_keras.src.engine.compile_utils import MetricsContainer

    from cowclip_merlin.batch import Batch

tf = compat.tensorflow()
mm = compat.merlin_models()


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class CTRModel(SyncedModel, mm.Model):
    """`merlin.models.tf.Model` that brings tables up to date to evaluate, predict and save."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        with tf.variable_creator_scope(create_synchronized):
            super().__init__(*args, **kwargs)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile as in Keras, and attach a CowClip with `update="exact"` to the tables.

        Raises:
            InputError: if `jit_compile` is used with CowClip.
        """
        super().compile(*args, **kwargs)
        if self.jit_compile and find_cowclip(self.optimizer) is not None:
            raise InputError(
                "jit_compile=True: XLA has no operation that counts ids, so it cannot compile "
                "CowClip; remove jit_compile"
            )
        attach(self, self.optimizer)

    def fit(self, *args: Any, train_metrics_steps: int = 1, **kwargs: Any) -> History:
        """Train as in Merlin.

        Raises:
            InputError: if `train_metrics_steps` is used with several replicas.
        """
        if train_metrics_steps != 1 and self.distribute_strategy.num_replicas_in_sync > 1:
            raise InputError(
                f"train_metrics_steps={train_metrics_steps}: several replicas compute metrics at "
                "every step; remove it, or compile without metrics"
            )
        self._create_optimizer_state()
        return super().fit(*args, train_metrics_steps=train_metrics_steps, **kwargs)

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Array | dict[str, Array]:
        """Predict as in Merlin, and warn of a loader whose order is not that of the rows."""
        if isinstance(x, mm.Loader) and x.shuffle:
            warnings.warn(
                "predict: this loader shuffles, so prediction i is not that of row i; give "
                "mm.Loader(data, batch_size=..., shuffle=False)",
                stacklevel=2,
            )
        return super().predict(x, *args, **kwargs)

    def _create_optimizer_state(self) -> None:
        """Create CowClip's variables: TensorFlow traces a step that creates some twice."""
        cowclip = find_cowclip(self.optimizer)
        if cowclip is not None:
            with self.distribute_strategy.scope():
                cowclip.create_state(self.trainable_variables)

    def call(
        self,
        inputs: Batch | dict[str, Tensor],
        targets: dict[str, Tensor] | Tensor | None = None,
        training: bool | None = None,
        testing: bool | None = None,
        output_context: bool | None = None,
    ) -> Tensor | Prediction:
        """Compute outputs as in Merlin, but without AutoGraph, which takes seconds per trace."""
        return self._traced_as_it_stands(inputs, targets, training, testing, output_context)

    @tf.autograph.experimental.do_not_convert
    def _traced_as_it_stands(self, *args: Any) -> Tensor | Prediction:
        return super().call(*args)

    def train_compute_metrics(
        self, outputs: Prediction, compiled_metrics: MetricsContainer
    ) -> dict[str, dict[str, Tensor]]:
        """Compute metrics as in Merlin, but without `tf.cond`, which several replicas lack."""
        if tf.distribute.get_strategy().num_replicas_in_sync > 1:
            return self.compute_metrics(outputs, compiled_metrics)
        return super().train_compute_metrics(outputs, compiled_metrics)

    def save(self, export_path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Save as in Merlin, with tables up to date and a graph without the optimizer's parts.

        It also accepts Keras's `overwrite` and `options`, which `ModelCheckpoint` passes.
        """
        self.row_sync.refuse_growing("save")
        with self.flushed_and_detached():
            if not {"overwrite", "options"} & set(kwargs):
                return super().save(export_path, *args, **kwargs)
            return compat.save_by_keras(self, export_path, *args, **kwargs)

    def export(self, *args: Any, **kwargs: Any) -> None:
        """Export as in Keras (TensorFlow 2.13 or newer), with tables up to date."""
        self.row_sync.refuse_growing("export")
        with self.flushed_and_detached():
            return super().export(*args, **kwargs)


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class Sigmoid(tf.keras.layers.Layer):
    """Converts logits to probabilities; Keras's cross-entropy reads the logit from this layer."""

    def call(self, z: Tensor) -> Tensor:
        """[b, 1] -> [b, 1]."""
        return tf.keras.activations.sigmoid(z)

    def compute_output_shape(self, input_shape: TensorShape) -> TensorShape:
        """Return the shape of the input."""
        return input_shape


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class ClickOutput(mm.BinaryOutput):
    """Merlin's output for 0/1 labels, with a layer name that TensorFlow accepts."""

    @classmethod
    def get_task_name(cls, target_name: str) -> str:
        """Return Merlin's name, after replacing characters that TensorFlow does not accept."""
        return mm.BinaryOutput.get_task_name(target_name and safe_names([target_name])[target_name])
