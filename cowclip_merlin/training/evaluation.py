"""Compute exact metrics of the predictions of each target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cowclip_merlin import metrics
from cowclip_merlin.errors import InputError
from cowclip_merlin.metrics.on_device import DeviceMetrics
from cowclip_merlin.targets import Target, columns_of_targets, only_clicks
from cowclip_merlin.training.run_logs import label_names, value_names
from cowclip_merlin.training.scoring.predicting import table_file
from cowclip_merlin.types import Array, ArrowColumn
from cowclip_merlin.workflows.prepared.counts import SPECIAL


@dataclass(frozen=True, kw_only=True)
class AucDifference:
    """AUC of a run minus that of another run on the same rows.

    Attributes:
        value: the difference, -1 to 1.
        error: standard error of the difference from the sampling of the rows (DeLong); NaN if a
            class has only one row. It does not contain the spread of training seeds.
    """

    value: float
    error: float


@dataclass(frozen=True, kw_only=True)
class AucByColumn:
    """Mean AUC of the rows of each id of a column, such as each user (GAUC).

    Attributes:
        column: the categorical column.
        grouped: the mean and what it covers; see `metrics.grouped_auc`.
        unknown_rows: rows left out, because all missing values, and all values that are new or
            rare, share one id.
    """

    column: str
    grouped: metrics.GroupedAuc
    unknown_rows: int


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Exact metrics of one split, weighted if its rows have weights.

    With several targets, these are the metrics of the first one.

    Attributes:
        auc: area under the ROC curve, in [0, 1]; NaN if all rows have the same label.
        log_loss: mean binary cross-entropy in nats.
        rows: number of scored rows, which with several targets have the label.
        auc_error: standard error of the AUC from the sampling of the rows (DeLong); NaN if a
            class has at most one row.
        normalized_entropy: log loss divided by that of the average click rate; NaN if all rows
            have the same label.
        calibration: predicted clicks divided by clicks; NaN without a click.
        difference: comparison with another run, if one was given.
        by: mean AUC by the ids of a column, if one was given.
        targets: the metrics of each target, by name, unless the only label is of 0 and 1.
    """

    auc: float
    log_loss: float
    rows: int
    auc_error: float
    normalized_entropy: float
    calibration: float
    difference: AucDifference | None = None
    by: AucByColumn | None = None
    targets: Mapping[str, Evaluation | RegressionEvaluation] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RegressionEvaluation:
    """Exact metrics of a target that is a number, weighted if its rows have weights.

    Attributes:
        rmse: root mean squared error; NaN without rows.
        rows: number of scored rows that have the label.
        targets: as in `Evaluation`, of the first target.
    """

    rmse: float
    rows: int
    targets: Mapping[str, Evaluation | RegressionEvaluation] = field(default_factory=dict)


def check_both_labels(path: Path, split: str, labels: Array, *, remedy: str) -> None:
    """Check before long work that rows have both labels, which an AUC needs.

    Args:
        path: of the prepared folder.
        split: name of the rows.
        labels: 0 or 1, [n].
        remedy: what the user can do.

    Raises:
        InputError: if there is no row, or all have the same label.
    """
    if not len(labels):
        raise InputError(f"{path}: no {split} row has a weight above 0; {remedy}")
    if len(found := np.unique(labels)) < 2:
        raise InputError(
            f"{path}: all {len(labels)} {split} rows have the label {found[0]:g}; an AUC needs "
            f"both labels; {remedy}"
        )


def check_targets_scored(
    path: Path,
    split: str,
    targets: Sequence[Target],
    labels: Array,
    weights: Array | None,
    *,
    remedy: str,
) -> None:
    """Check before long work that rows can score each target; see `check_both_labels`.

    Args:
        path: of the prepared folder.
        split: name of the rows.
        targets: the targets.
        labels: [n, T].
        weights: of the rows, [n]; None: all are equal.
        remedy: what the user can do.

    Raises:
        InputError: if all labels of a target are the same, or a regression has none.
    """
    labels = weighted_labels(labels, weights)
    if only_clicks(targets):
        check_both_labels(path, split, labels[:, 0], remedy=remedy)
        return
    for target, _, own in columns_of_targets(labels, targets):
        if not len(own):
            raise InputError(f"{path}: no {split} row has a label {target.name!r}; {remedy}")
        if not target.regression and len(np.unique(own)) < 2:
            raise InputError(
                f"{path}: all {len(own)} {split} rows with a label {target.name!r} have "
                f"{own[0]:g}; an AUC needs both labels; {remedy}"
            )


def weighted_labels(labels: npt.ArrayLike, weights: npt.ArrayLike | None) -> Array:
    """Return the labels of the rows with a weight above 0, which an AUC needs.

    >>> weighted_labels([0, 1, 1], [1.0, 0.0, 0.5]).tolist()
    [0, 1]
    """
    return np.asarray(labels)[slice(None) if weights is None else np.asarray(weights) > 0]


def from_device(found: DeviceMetrics, rows: int) -> Evaluation:
    """Return metrics that the device has computed, of so many rows.

    Raises:
        InputError: if a logit is NaN.
    """
    if found.nan_rows:
        raise InputError(f"{found.nan_rows} of {rows} scores are NaN; train again")
    names = ("auc", "log_loss", "auc_error", "normalized_entropy", "calibration")
    return Evaluation(rows=rows, **{name: getattr(found, name) for name in names})


def evaluate(
    labels: npt.ArrayLike,
    probabilities: npt.ArrayLike,
    others: npt.ArrayLike | None = None,
    *,
    weights: npt.ArrayLike | None = None,
) -> Evaluation:
    """Compute exact metrics of probabilities [n] against labels [n].

    Args:
        labels: 0 or 1, [n].
        probabilities: of label 1, [n].
        others: probabilities of another run for the same rows, to compare the AUC with.
        weights: of the rows, [n]; None: all are equal.

    Raises:
        InputError: if `others` are given and all labels are the same, or all weights are 0.

    >>> evaluate([0, 1], [0.25, 0.75]).auc, evaluate([0, 0], [0.25, 0.75]).auc
    (1.0, nan)
    """
    auc = auc_error = float("nan")
    given: dict[str, npt.ArrayLike | None] = {"sample_weight": weights}
    if others is not None or len(np.unique(weighted_labels(labels, weights))) > 1:
        auc, auc_error = metrics.auc_and_error(labels, probabilities, **given)
    difference = None
    if others is not None:
        value, error = metrics.auc_difference(labels, probabilities, others, **given)
        difference = AucDifference(value=value, error=error)
    log_loss, normalized_entropy = metrics.log_loss_and_entropy(labels, probabilities, **given)
    return Evaluation(
        auc=auc,
        log_loss=log_loss,
        rows=int(np.size(labels)),
        auc_error=auc_error,
        normalized_entropy=normalized_entropy,
        calibration=metrics.calibration(labels, probabilities, **given),
        difference=difference,
    )


def auc_by_column(
    column: str,
    ids: Array,
    labels: Array,
    probabilities: npt.NDArray[np.float64],
    weights: Array | None = None,
) -> AucByColumn:
    """Compute the mean AUC of the rows of each id.

    Args:
        column: name of the column.
        ids: its ids, [n].
        labels: 0 or 1, [n].
        probabilities: of label 1, [n].
        weights: of the rows, [n]; None: all are equal.

    Raises:
        InputError: if no row has a known id, or all of these rows have the weight 0.
    """
    known = ids >= len(SPECIAL)
    if not known.any():
        raise InputError(f"{column}: no row has a known value; give `by` another column")
    weights = None if weights is None else weights[known]
    grouped = metrics.grouped_auc(
        labels[known], probabilities[known], ids[known], sample_weight=weights
    )
    return AucByColumn(column=column, grouped=grouped, unknown_rows=int((~known).sum()))


def write_predictions(
    path: Path,
    kept: Mapping[str, ArrowColumn | Array],
    labels: Array,
    values: npt.NDArray[np.float64],
    targets: Sequence[Target],
) -> None:
    """Write a file with the kept columns, label, probability, in one atomic step.

    With several targets, each has such columns with its name. A missing label is null.

    Args:
        path: the file.
        kept: the first columns, each [n].
        labels: [n, T].
        values: predictions, [n, T].
        targets: the targets.
    """
    import pyarrow as pa

    several = not only_clicks(targets)
    columns = dict(kept)
    for index, name in enumerate(label_names(targets)):
        own = labels[:, index] if several else labels[:, index].astype(np.int8)
        columns[name] = pa.array(own, from_pandas=several)
        columns[value_names(targets)[index]] = values[:, index]
    with table_file(path) as write:
        write(pa.table(columns))


Rows: TypeAlias = "tuple[Array, Array, Array | None, Array]"
"""Labels, predictions, weights, and which rows these are, bool."""

NAN = float("nan")


def rows_of_targets(
    targets: Sequence[Target], labels: Array, values: Array, weights: Array | None
) -> Iterator[tuple[Target, int, Rows]]:
    """Yield each target, its column, and the rows that have its label.

    Args:
        targets: the targets.
        labels: [n, T]; a missing one is NaN.
        values: probabilities, or numbers of a regression, [n, T].
        weights: of the rows, [n]; None: all are equal.
    """
    for column, (target, known, own) in enumerate(columns_of_targets(labels, targets)):
        weight = None if weights is None else weights[known]
        yield target, column, (own, values[known, column], weight, known)


def evaluate_targets(
    targets: Sequence[Target],
    labels: Array,
    values: Array,
    others: Array | None = None,
    *,
    weights: Array | None = None,
) -> Evaluation | RegressionEvaluation:
    """Compute the metrics of all targets.

    Args:
        targets: the targets.
        labels: [n, T]; a missing one is NaN.
        values: probabilities, or numbers of a regression, [n, T].
        others: those of another run, to compare the AUCs with.
        weights: of the rows, [n]; None: all are equal.

    Returns:
        The metrics of the first target, with those of each in `targets`, unless the only label is
        of 0 and 1.
    """
    if only_clicks(targets):
        of_other = None if others is None else others[:, 0]
        return evaluate(labels[:, 0], values[:, 0], of_other, weights=weights)
    found: dict[str, Evaluation | RegressionEvaluation] = {}
    for target, column, rows in rows_of_targets(targets, labels, values, weights):
        other = None if others is None else others[rows[3], column]
        found[target.name] = _evaluate_one(target, rows, other)
    return replace(found[targets[0].name], targets=found)


def _evaluate_one(
    target: Target, rows: Rows, other: Array | None
) -> Evaluation | RegressionEvaluation:
    labels, values, weights, _ = rows
    none = not len(labels) or (weights is not None and not weights.any())
    if target.regression:
        given = {"sample_weight": weights}
        rmse = NAN if none else metrics.root_mean_squared_error(labels, values, **given)
        return RegressionEvaluation(rmse=rmse, rows=len(labels))
    if none:
        nothing = dict.fromkeys(("auc", "log_loss", "auc_error", "normalized_entropy"), NAN)
        return Evaluation(rows=len(labels), calibration=NAN, **nothing)
    return evaluate(labels, values, other, weights=weights)


def auc_by_targets(
    result: Evaluation | RegressionEvaluation,
    targets: Sequence[Target],
    column: str,
    ids: Array,
    labels: Array,
    values: Array,
    weights: Array | None,
) -> Evaluation | RegressionEvaluation:
    """Return the result with the mean AUC of the rows of each id, for each target of 0 and 1.

    Args:
        result: of `evaluate_targets`.
        targets: the targets.
        column: name of the column.
        ids: its ids, [n].
        labels: as for `evaluate_targets`.
        values: likewise.
        weights: likewise.
    """
    found: dict[str, AucByColumn] = {}
    for target, _, (own, predicted, weight, known) in rows_of_targets(
        targets, labels, values, weights
    ):
        if not target.regression and len(own):
            found[target.name] = auc_by_column(column, ids[known], own, predicted, weight)

    def with_auc(name: str, each: Evaluation | RegressionEvaluation) -> Any:
        return replace(each, by=found[name]) if name in found else each

    every = {name: with_auc(name, each) for name, each in result.targets.items()}
    return replace(with_auc(targets[0].name, result), targets=every)
