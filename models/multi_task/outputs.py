"""Merlin's outputs for several targets, whose labels may be missing (NaN)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cowclip_merlin import compat
from cowclip_merlin.compat.tensorflow_names import safe_names
from cowclip_merlin.targets import Scales, Target, only_clicks, served_names
from cowclip_merlin.types import JsonObject, Operation, Tensor, TensorShape

if TYPE_CHECKING:
    from tensorflow.keras.metrics import Metric

    from cowclip_merlin.batch import Batch
    from cowclip_merlin.models.ctr_model import CTRModel

tf = compat.tensorflow()
mm = compat.merlin_models()


def output_names(targets: Sequence[Target]) -> dict[str, str]:
    """Map the label of each target to the name of a served output, which TensorFlow accepts.

    >>> output_names([Target("y")]), output_names([Target("bought it"), Target("sec", True)])
    ({'y': 'probability'}, {'bought it': 'bought_it', 'sec': 'sec'})
    """
    served = served_names(targets)
    safe = safe_names(served)
    return {target.name: safe[name] for target, name in zip(targets, served)}


def values_by_label(model: CTRModel, inputs: Batch | dict[str, Tensor]) -> dict[str, Tensor]:
    """Map each label to the model's probabilities, or numbers of a regression, float32 [b].

    Args:
        model: of one target or several.
        inputs: of the model.
    """
    targets, values = model.blocks[0].columns.targets, model(inputs)
    if len(targets) > 1:
        outputs = model.outputs_by_target()
        found = [values[outputs[name].full_name] for name, _ in targets]
    else:
        found = [values]
    return {target.name: tf.reshape(each, [-1]) for target, each in zip(targets, found)}


def values_of(z: Tensor, targets: Sequence[Target]) -> Tensor:
    """Return the click probability of each row, [b]; of other targets their predictions, [b, T].

    Args:
        z: logits, [b, T]; that of a regression is its prediction.
        targets: of the columns.

    >>> values_of(tf.constant([[0.0, 2.5]]), [Target("y"), Target("t", True)]).numpy().tolist()
    [[0.5, 2.5]]
    """
    if only_clicks(targets):
        return tf.sigmoid(z)[:, 0]
    return tf.where(tf.constant([target.regression for target in targets]), z, tf.sigmoid(z))


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class TargetValue(tf.keras.layers.Layer):
    """Takes the column of one target from the logits, and makes it a probability or a number.

    Args:
        column: of the target.
        regression: whether the logit is the number itself.
    """

    def __init__(self, column: int, *, regression: bool, **kwargs: Any) -> None:
        super().__init__(**({"dtype": "float32"} | kwargs))
        self.column, self.regression = column, regression

    def call(self, z: Tensor) -> Tensor:
        """[b, T] -> [b, 1]."""
        z = z[:, self.column : self.column + 1]
        return z if self.regression else tf.keras.activations.sigmoid(z)

    def compute_output_shape(self, input_shape: TensorShape) -> TensorShape:
        """Return [b, 1]."""
        return tf.TensorShape([input_shape[0], 1])

    def get_config(self) -> JsonObject:
        """Arguments as plain values."""
        return super().get_config() | {"column": self.column, "regression": self.regression}


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class LossOfLabels(tf.keras.losses.Loss):
    """Cross-entropy or squared error of the rows that have a label, 0 for the others.

    Keras divides the sum by the number of all rows, as for rows with a sample weight of 0.

    Args:
        regression: whether to take the squared error.
        spread: of the numbers; the error is in units of it.
    """

    def __init__(self, regression: bool = False, spread: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.regression, self.spread = regression, spread

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """[b, 1] and [b, 1] -> [b]."""
        known = tf.math.logical_not(tf.math.is_nan(y_true))
        labels = tf.where(known, y_true, tf.zeros_like(y_true))
        how = tf.keras.metrics.mean_squared_error
        losses = (how if self.regression else tf.keras.losses.binary_crossentropy)(labels, y_pred)
        losses /= self.spread**2
        return tf.where(tf.squeeze(known, -1), losses, tf.zeros_like(losses))

    def get_config(self) -> JsonObject:
        """Arguments as plain values."""
        return super().get_config() | {"regression": self.regression, "spread": self.spread}


class _OfLabels:
    """A metric of Keras that leaves out rows without a label."""

    def update_state(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> Operation | None:
        """Add rows; their weight is 0 without a label."""
        known = tf.math.logical_not(tf.math.is_nan(y_true))
        weight = tf.cast(known, tf.float32)
        if sample_weight is not None:
            weight *= tf.reshape(tf.cast(sample_weight, tf.float32), tf.shape(weight))
        labels = tf.where(known, y_true, tf.zeros_like(y_true))
        return super().update_state(labels, y_pred, sample_weight=weight)  # type: ignore[misc]


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class AucOfLabels(_OfLabels, tf.keras.metrics.AUC):
    """Keras's AUC of the rows that have a label."""


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class RmseOfLabels(_OfLabels, tf.keras.metrics.RootMeanSquaredError):
    """Keras's root mean squared error of the rows that have a label."""


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
def auc_of_labels() -> tuple[Metric, ...]:
    """Return the metrics of a target of 0 and 1."""
    return (AucOfLabels(name="auc"),)


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
def rmse_of_labels() -> tuple[Metric, ...]:
    """Return the metrics of a regression."""
    return (RmseOfLabels(name="root_mean_squared_error"),)


class _SafeName:
    @classmethod
    def get_task_name(cls, target_name: str) -> str:
        """Return Merlin's name, after replacing characters that TensorFlow does not accept."""
        safe = target_name and safe_names([target_name])[target_name]
        return super().get_task_name(safe)  # type: ignore[misc]


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class BinaryTarget(_SafeName, mm.BinaryOutput):
    """Merlin's output for labels of 0 and 1."""


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class NumberTarget(_SafeName, mm.RegressionOutput):
    """Merlin's output for labels that are numbers."""


def outputs_of(targets: Sequence[Target], scales: Scales) -> mm.ParallelBlock | mm.ModelOutput:
    """Return a block with one output of Merlin for each target; of one target its output."""
    outputs = {}
    for column, (name, regression) in enumerate(targets):
        kind = NumberTarget if regression else BinaryTarget
        output = kind(
            name,
            to_call=TargetValue(column, regression=regression),
            default_loss=LossOfLabels(regression, scales.get(name, (0.0, 1.0))[1]),
            default_metrics_fn=rmse_of_labels if regression else auc_of_labels,
            dtype="float32",
        )
        outputs[output.full_name] = output
    return mm.ParallelBlock(outputs) if len(outputs) > 1 else output
