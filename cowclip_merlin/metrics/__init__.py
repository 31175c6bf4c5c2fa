"""Exact metrics of predicted click probabilities and numbers, for any number of rows."""

from cowclip_merlin.metrics.auc import (
    GroupedAuc,
    auc_and_error,
    auc_difference,
    auc_standard_error,
    grouped_auc,
    roc_auc,
)
from cowclip_merlin.metrics.probabilities import (
    ReliabilityBin,
    calibration,
    log_loss,
    log_loss_and_entropy,
    normalized_entropy,
    reliability,
    root_mean_squared_error,
)

__all__ = [
    "GroupedAuc",
    "ReliabilityBin",
    "auc_and_error",
    "auc_difference",
    "auc_standard_error",
    "calibration",
    "grouped_auc",
    "log_loss",
    "log_loss_and_entropy",
    "normalized_entropy",
    "reliability",
    "roc_auc",
    "root_mean_squared_error",
]
