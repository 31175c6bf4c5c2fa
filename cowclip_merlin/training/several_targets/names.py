"""Names of what a run writes for each of several targets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cowclip_merlin.targets import Target

if TYPE_CHECKING:
    from cowclip_merlin.training.evaluation import Evaluation, RegressionEvaluation

_BINARY = ("auc", "auc_error", "log_loss", "normalized_entropy", "calibration")
_NUMBER = ("rmse",)
_COLUMN = re.compile(rf"(test|validation)_(.+)_({'|'.join((*_BINARY, *_NUMBER))})")


def is_metric_column(name: str) -> bool:
    """Whether a name is that of a column of `metrics.csv` for one of several targets.

    >>> is_metric_column("test_click_auc"), is_metric_column("test_auc")
    (True, False)
    """
    return _COLUMN.fullmatch(name) is not None


def metrics_of_targets(split: str, result: Evaluation) -> dict[str, float]:
    """Return the columns of `metrics.csv` for each of several targets; none with one target.

    They are named as Keras names them: the target, then the metric.
    """
    return {
        f"{split}_{name}_{metric}": getattr(found, metric)
        for name, found in result.targets.items()
        for metric in _metrics_of(found)
    }


def _metrics_of(found: Evaluation | RegressionEvaluation) -> Sequence[str]:
    return _BINARY if hasattr(found, "auc") else _NUMBER


def metric_words(row: Mapping[str, float], split: str) -> str:
    """Describe the AUC or RMSE of each of several targets of a row of metrics; "" with one target.

    >>> metric_words({"test_auc": 0.75, "test_click_auc": 0.75, "test_sec_rmse": 2.0}, "test")
    'click AUC 0.75000, sec RMSE 2.00000'
    """
    words = []
    for name, found in target_metrics(row, split).items():
        kind = "auc" if "auc" in found else "rmse"
        words.append(f"{name} {kind.upper()} {found[kind]:.5f}")
    return ", ".join(words)


def target_metrics(row: Mapping[str, float | str], split: str) -> dict[str, dict[str, float]]:
    """Return the metrics of each of several targets in a row of metrics; {} with one target.

    >>> target_metrics({"test_auc": 0.75, "test_click_auc": 0.75, "test_sec_rmse": 2.0}, "test")
    {'click': {'auc': 0.75}, 'sec': {'rmse': 2.0}}
    """
    found: dict[str, dict[str, float]] = {}
    for column, value in row.items():
        match = _COLUMN.fullmatch(column)
        if match and match[1] == split and value != "":
            found.setdefault(match[2], {})[match[3]] = float(value)
    return found


def value_names(targets: Sequence[Target]) -> list[str]:
    """Return the names of the columns with predictions in a file.

    >>> value_names([Target("y")]), value_names([Target("y"), Target("sec", True)])
    (['probability'], ['probability_y', 'prediction_sec'])
    """
    if len(targets) == 1:
        return ["probability"]
    kinds = {False: "probability", True: "prediction"}
    return [f"{kinds[regression]}_{name}" for name, regression in targets]


def label_names(targets: Sequence[Target]) -> list[str]:
    """Return the names of the columns with labels in a file.

    >>> label_names([Target("y")]), label_names([Target("y"), Target("sec", True)])
    (['label'], ['label_y', 'label_sec'])
    """
    return ["label"] if len(targets) == 1 else [f"label_{name}" for name, _ in targets]
