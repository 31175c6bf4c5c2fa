"""Weights of the two labels in the loss, as `class_weight` of Keras and scikit-learn.

A model that is trained with weights w0 and w1 of the labels finds the log odds of a click plus
log(w1 / w0). So a step adds this number to the logits before it computes the loss. Then the model's
own logits, and all that is served and exported, are those of the click rate.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cowclip_merlin import compat
from cowclip_merlin.batch import Batch
from cowclip_merlin.checks import ClassWeights, parse_class_weights
from cowclip_merlin.errors import InputError

if TYPE_CHECKING:
    from cowclip_merlin.loading.column_arrays import ColumnArrays


def class_weights_of(text: str, columns: ColumnArrays) -> ClassWeights:
    """Return the weights of the labels for these training rows.

    "balanced" gives each label half of the sum of weights: n / (2 n_k) for n rows, of which n_k
    have the label k. If rows have weights, their sums take the place of n and n_k. This is
    scikit-learn's formula.

    Args:
        text: as for `parse_class_weights`.
        columns: the training rows.

    Raises:
        InputError: as `parse_class_weights`; or if a label has no weight above 0 in these rows.
    """
    if (weights := parse_class_weights(text)) is not None:
        if not any(w and s for w, s in zip(weights, label_weights(columns))):
            raise InputError(f"`class_weight` {text!r} gives all training rows the weight 0")
        return weights
    negative, positive = label_weights(columns)
    for label, of_label in enumerate((negative, positive)):
        if not of_label:
            raise InputError(
                f"`class_weight` {text!r}: no training row has the label {label} and a weight "
                "above 0; give weights, such as 0:1,1:10"
            )
    half = (negative + positive) / 2
    return half / negative, half / positive


def label_weights(columns: ColumnArrays) -> tuple[float, float]:
    """Return the sums of the weights of all rows of label 0, and of label 1."""
    label, weight = columns.labels[:, 0], columns.weights
    if weight is None:
        positive = float(label.sum(dtype="float64"))
        return len(columns) - positive, positive
    positive = float((label * weight).sum(dtype="float64"))
    return float(weight.sum(dtype="float64")) - positive, positive


def total_weight(columns: ColumnArrays) -> float:
    """Return the sum of the weights of all rows in the loss, or their number if all are 1."""
    if columns.class_weights is None:
        weight = columns.weights
        return len(columns) if weight is None else float(weight.sum(dtype="float64"))
    return sum(w * s for w, s in zip(columns.class_weights, label_weights(columns)))


def added_log_odds(weights: ClassWeights) -> float:
    """Return what weights of the labels add to the log odds; 0 if a label does not count at all.

    >>> added_log_odds((0.5, 1.0)) == math.log(2), added_log_odds((0.0, 1.0))
    (True, 0.0)
    """
    return math.log(weights[1] / weights[0]) if all(weights) else 0.0


def weighted_by_class(batch: Batch, weights: ClassWeights) -> Batch:
    """Return a batch of tensors with weights and offsets by the labels.

    The weights of the rows are multiplied by those of the labels.
    """
    tf = compat.tensorflow()
    negative, positive = (tf.constant(weight, tf.float32) for weight in weights)
    of_labels = tf.where(batch.labels > 0.5, positive, negative)
    return batch._replace(
        weights=of_labels if batch.weights is None else batch.weights * of_labels,
        offsets=tf.fill(tf.shape(of_labels), tf.constant(-added_log_odds(weights), tf.float32)),
    )
