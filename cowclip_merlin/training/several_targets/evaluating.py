"""Evaluate the predictions of each target on the rows that have its label."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from cowclip_merlin import metrics
from cowclip_merlin.targets import Target, columns_of_targets, only_clicks
from cowclip_merlin.training.evaluation import (
    AucByColumn,
    Evaluation,
    RegressionEvaluation,
    auc_by_column,
    evaluate,
)
from cowclip_merlin.types import Array

Rows: TypeAlias = "tuple[Array, Array, Array | None, Array]"
"""Labels, predictions, weights, and which rows these are, bool."""

NAN = float("nan")


def rows_of_targets(
    targets: Sequence[Target], labels: Array, values: Array, weights: Array | None
) -> Iterator[tuple[Target, int, Rows]]:
    """Yield each target, its column, and the rows that have its label.

    Args:
        targets: several targets.
        labels: [n, T]; a missing one is NaN.
        values: probabilities, or numbers of a regression, [n, T].
        weights: of the rows, [n]; None: all are equal.
    """
    for column, (target, known, own) in enumerate(columns_of_targets(labels, targets)):
        weight = None if weights is None else weights[known]
        yield target, column, (own, values[known, column], weight, known)


def first_target(
    targets: Sequence[Target], labels: Array, values: Array, weights: Array | None
) -> tuple[Array, Array, Array | None]:
    """Return labels, probabilities and weights of the rows of the first target."""
    if only_clicks(targets):
        return labels, values, weights
    _, _, rows = next(rows_of_targets(targets, labels, values, weights))
    return rows[:3]


def evaluate_targets(
    targets: Sequence[Target],
    labels: Array,
    values: Array,
    others: Array | None = None,
    *,
    weights: Array | None = None,
) -> Evaluation | RegressionEvaluation:
    """Compute the metrics of all targets; one of 0 and 1 is `evaluate`.

    Args:
        targets: the targets.
        labels: [n], or [n, T] of several targets, where a missing one is NaN.
        values: probabilities, or numbers of a regression, shaped like the labels.
        others: those of another run, to compare the AUCs with.
        weights: of the rows, [n]; None: all are equal.

    Returns:
        The metrics of the first target, which else has those of each in `targets`.
    """
    if only_clicks(targets):
        return evaluate(labels, values, others, weights=weights)
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
    if only_clicks(targets):
        return replace(result, by=auc_by_column(column, ids, labels, values, weights))
    found: dict[str, AucByColumn] = {}
    for target, _, (own, predicted, weight, known) in rows_of_targets(
        targets, labels, values, weights
    ):
        if not target.regression and len(own):
            found[target.name] = auc_by_column(column, ids[known], own, predicted, weight)
    every = {
        name: replace(each, by=found[name]) if name in found else each
        for name, each in result.targets.items()
    }
    return replace(every[targets[0].name], targets=every)
