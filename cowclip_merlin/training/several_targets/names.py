"""Names of what a run writes for each of several targets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cowclip_merlin.targets import Target, kind_of

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


def metrics_of(split: str, result: Evaluation | RegressionEvaluation) -> dict[str, float]:
    """Return the columns of `metrics.csv` for the first target, then for each by its name.

    A number has none of the former, and a label of 0 and 1 alone none of the latter, which are
    named as Keras names them: the target, then the metric.
    """
    first = {f"{split}_{name}": getattr(result, name) for name in _metrics_of(result)}
    return (first if hasattr(result, "auc") else {}) | {
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
    found = target_metrics(row, split)
    return ", ".join(f"{name} {target_words(each)}" for name, each in found.items())


def target_metrics(row: Mapping[str, float | str], split: str) -> dict[str, dict[str, float]]:
    """Return the metrics of each target in a row of metrics; {} with one label of 0 and 1 only.

    >>> target_metrics({"test_auc": 0.75, "test_click_auc": 0.75, "test_sec_rmse": 2.0}, "test")
    {'click': {'auc': 0.75}, 'sec': {'rmse': 2.0}}
    """
    found: dict[str, dict[str, float]] = {}
    for column, value in row.items():
        match = _COLUMN.fullmatch(column)
        if match and match[1] == split and value != "":
            found.setdefault(match[2], {})[match[3]] = float(value)
    return found


def target_words(metrics: Mapping[str, float]) -> str:
    """Name and write the AUC or RMSE of a target, which has the one or the other.

    >>> target_words({"rmse": 2.0}), target_words({"auc": 0.75, "log_loss": 0.5})
    ('RMSE 2.00000', 'AUC 0.75000')
    """
    kind = "auc" if "auc" in metrics else "rmse"
    return f"{kind.upper()} {metrics[kind]:.5f}"


def value_names(targets: Sequence[Target]) -> list[str]:
    """Return the names of the columns with predictions in a file.

    >>> value_names([Target("y")]), value_names([Target("y"), Target("sec", True)])
    (['probability'], ['probability_y', 'prediction_sec'])
    """
    if len(targets) == 1:
        return [kind_of(targets[0])]
    return [f"{kind_of(target)}_{target.name}" for target in targets]


def label_names(targets: Sequence[Target]) -> list[str]:
    """Return the names of the columns with labels in a file.

    >>> label_names([Target("y")]), label_names([Target("y"), Target("sec", True)])
    (['label'], ['label_y', 'label_sec'])
    """
    return ["label"] if len(targets) == 1 else [f"label_{name}" for name, _ in targets]
