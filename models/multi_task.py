"""Several targets: layers between the embeddings and the logits, losses, and outputs of Merlin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from cowclip_merlin import compat
from cowclip_merlin.compat.tensorflow_names import safe_names
from cowclip_merlin.models.hidden.layers import applied, made
from cowclip_merlin.targets import (
    Scales,
    Target,
    check_esmm,
    means_and_spreads,
    only_clicks,
    served_names,
)
from cowclip_merlin.types import JsonObject, Layer, Operation, Tensor, TensorShape

if TYPE_CHECKING:
    from tensorflow.keras.metrics import Metric

    from cowclip_merlin.batch import Batch
    from cowclip_merlin.models.ctr_model import CTRModel
    from cowclip_merlin.models.features import Features, ReadFeatures

tf = compat.tensorflow()
mm = compat.merlin_models()


def number_of_towers(multi_task: str | None, targets: Sequence[Target], experts: int) -> int:
    """Return how many towers replace the hidden layers; 0: all targets share the hidden layers.

    MMoE has one tower per expert (Ma et al., KDD 2018), ESMM one per target (Ma et al., SIGIR 2018,
    section 2.2: the two networks share the embeddings only).

    Raises:
        InputError: if ESMM has other targets than two of 0 and 1.

    >>> number_of_towers("mmoe", [Target("a"), Target("b")], 3)
    3
    """
    if multi_task != "esmm":
        return experts if multi_task == "mmoe" else 0
    check_esmm(targets)
    return 2


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class Gates(tf.keras.layers.Layer):
    """Mixes the experts for each target: `f_k = sum_i softmax(x W_k)_i e_i` (MMoE, equation 6).

    Args:
        targets: number of targets, T.
        seed: random seed of W.
    """

    def __init__(self, targets: int, *, seed: int, **kwargs: Any) -> None:
        super().__init__(**({"dtype": "float32"} | kwargs))
        self.targets, self.seed = targets, seed

    def build(self, input_shape: TensorShape) -> None:
        """Create the weights of all gates, [n, T * E]; the experts are [b, E, h]."""
        (_, n), (_, experts, _) = input_shape
        he = tf.keras.initializers.HeNormal(seed=self.seed)
        self.kernel = self.add_weight("kernel", [n, self.targets * experts], initializer=he)
        super().build(input_shape)

    def call(self, inputs: tuple[Tensor, Tensor]) -> Tensor:
        """Input x [b, n] and experts [b, E, h] -> [b, T, h]."""
        x, experts = inputs
        gates = tf.reshape(tf.matmul(x, self.kernel), [-1, self.targets, experts.shape[1]])
        return tf.matmul(tf.nn.softmax(gates), experts)

    def get_config(self) -> JsonObject:
        """Arguments as plain values."""
        return super().get_config() | {"targets": self.targets, "seed": self.seed}


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class LogitPerTarget(tf.keras.layers.Layer):
    """An output layer for each target on an input of its own: `z_k = h_k . w_k + b_k`.

    Args:
        seed: random seed of w.
    """

    def __init__(self, *, seed: int, **kwargs: Any) -> None:
        super().__init__(**({"dtype": "float32"} | kwargs))
        self.seed = seed

    def build(self, input_shape: TensorShape) -> None:
        """Create w [T, h] with the fan-in h, and b [T]."""
        _, targets, h = input_shape
        std = (2.0 / h) ** 0.5 / 0.87962566103423978  # as Keras's HeNormal
        normal = tf.keras.initializers.TruncatedNormal(stddev=std, seed=self.seed)
        self.w = self.add_weight("w", [targets, h], initializer=normal)
        self.b = self.add_weight("b", [targets], initializer="zeros")
        super().build(input_shape)

    def call(self, h: Tensor) -> Tensor:
        """[b, T, h] -> [b, T]."""
        return tf.reduce_sum(h * self.w, axis=2) + self.b

    def get_config(self) -> JsonObject:
        """Arguments as plain values."""
        return super().get_config() | {"seed": self.seed}


class HiddenLayers:
    """Mixin of `ClickModel`: its hidden layers and output layers, for one target or several."""

    _fused = False  # whether hidden layers may be one operation now
    _training = False  # whether they compute for a step of training now

    def add_hidden(self) -> None:
        """Create the hidden layers, or towers of them, and the output layers."""
        settings, targets = self.architecture, self.columns.targets
        towers = number_of_towers(settings.multi_task, targets, settings.mmoe_experts)
        if towers:
            self.towers = [made(settings, 1000 * tower) for tower in range(1, towers + 1)]
            self.logit = LogitPerTarget(seed=settings.seed + 50)
        else:
            self.hidden = made(settings, 0)
            # With one seed, equal shapes would get equal values.
            he = tf.keras.initializers.HeNormal(seed=settings.seed + 50)
            self.logit = tf.keras.layers.Dense(len(targets), kernel_initializer=he, dtype="float32")
        if settings.multi_task == "mmoe":
            self.gates = Gates(len(targets), seed=settings.seed + 60)

    def mlp(self, flat: Tensor) -> Tensor:
        """Apply the hidden layers to `Features.padded`: all embeddings and continuous features.

        Returns:
            What the output layers read: [b, mlp[-1]], or [b, T, mlp[-1]] if it differs by target.
        """
        if not hasattr(self, "towers"):
            return self._applied(self.hidden, flat)
        each = [self._applied(hidden, flat) for hidden in self.towers]
        towers = tf.stack(each, axis=1)
        return self.gates((flat, towers)) if hasattr(self, "gates") else towers

    def mlp_logit(self, features: Features | ReadFeatures) -> Tensor:
        """Apply the hidden layers and the output layer, [b, T]."""
        if hasattr(self, "towers"):
            return self.logit(self.mlp(features.padded))
        return self._applied(self.hidden, features.padded, self.logit)

    def _applied(self, hidden: list[Layer], flat: Tensor, output: Layer | None = None) -> Tensor:
        how = {"fused": self._fused, "training": self._training}
        return applied(hidden, flat, output=output, **how)


def side_by_side(shared: Tensor, h: Tensor) -> Tensor:
    """Concatenate [b, m] with h [b, n], or with each target's h of [b, T, n].

    >>> side_by_side(tf.zeros([2, 3]), tf.zeros([2, 4, 5])).shape.as_list()
    [2, 4, 8]
    """
    if h.shape.rank == 3:
        shared = tf.repeat(tf.expand_dims(tf.cast(shared, h.dtype), 1), h.shape[1], axis=1)
    return tf.concat([shared, h], axis=h.shape.rank - 1)


def of_both(z: Tensor) -> Tensor:
    """Return ESMM's logits of the first label, and of both labels together: [b, 2] -> [b, 2].

    With the logits a of a click and c of a conversion after it, the probability of both is
    p = sigmoid(a) sigmoid(c) (ESMM, equation 1). Its logit is log(p / (1 - p)) =
    -log(exp(-a) + exp(-c) + exp(-a - c)), which does not overflow.

    >>> of_both(tf.constant([[-200.0, 200.0], [200.0, 200.0]])).numpy().round().tolist()
    [[-200.0, -200.0], [200.0, 199.0]]
    """
    a, c = z[:, :1], z[:, 1:]
    both = -tf.reduce_logsumexp(tf.concat([-a, -c, -a - c], axis=1), axis=1, keepdims=True)
    return tf.concat([a, both], axis=1)


def losses_of(targets: Sequence[Target], scales: Scales) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the function of labels and logits that gives the loss of each row, [b].

    With one label of 0 and 1, labels and logits are [b], and the loss is the binary cross-entropy.
    Else both are [b, T], and the loss of a row is the sum of those of its labels: binary
    cross-entropy, or the squared error of a regression in units of its spread, so that seconds or
    euros do not drown clicks. A missing label (NaN) adds 0. So the
    mean over a batch divides each target's sum by all rows, not by those with its label, as Keras
    does with sample weights of 0. The scale of a target's gradient then does not depend on how
    many of the batch's rows have its label, and parts of a batch add up to the whole.

    >>> losses = losses_of([Target("y"), Target("t", True)], {"t": (9.0, 2.0)})
    >>> losses(tf.constant([[1.0, 5.0], [float("nan"), 2.0]]), tf.zeros([2, 2])).numpy().round(4)
    array([6.9431, 1.    ], dtype=float32)
    """
    if only_clicks(targets):
        return tf.nn.sigmoid_cross_entropy_with_logits

    _, spreads = means_and_spreads(targets, scales)

    def of_all(labels: Tensor, z: Tensor) -> Tensor:
        known = tf.math.logical_not(tf.math.is_nan(labels))
        y = tf.where(known, labels, tf.zeros_like(labels))
        numbers = tf.constant([target.regression for target in targets])
        squares = tf.square((z - y) / tf.constant(spreads, z.dtype))
        each = tf.where(numbers, squares, tf.nn.sigmoid_cross_entropy_with_logits(y, z))
        return tf.reduce_sum(tf.where(known, each, tf.zeros_like(each)), axis=1)

    return of_all


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
