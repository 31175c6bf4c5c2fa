"""Rank the points of a sweep by the AUC of their runs on the validation rows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import replace

from cowclip_merlin.experiments.definitions import Experiment
from cowclip_merlin.experiments.planning.planned_run import RunResults
from cowclip_merlin.training import RunSettings

Scores = dict[str, dict[int | str, list[float]]]
"""Label of a point -> multiplier -> validation AUC of each seed."""


def validation_scores(results: RunResults) -> Scores:
    """Return the validation AUC of each point's runs by multiplier; 0 for a diverged run."""
    found: Scores = {}
    for run, result in results.items():
        auc = 0.0 if math.isnan(result.auc) else result.auc
        found.setdefault(run.label, {}).setdefault(run.multiplier, []).append(auc)
    return found


def mean_score(by_multiplier: Mapping[int | str, list[float]]) -> float:
    """Return the mean over the multipliers of the mean over the seeds."""
    return statistics.fmean(map(statistics.fmean, by_multiplier.values()))


def ranked_labels(results: RunResults) -> list[str]:
    """Sort labels of the points by mean score, best first; ties keep the order of the runs.

    Points that lack one of the batches are omitted.
    """
    scores = validation_scores(results)
    batches = max(map(len, scores.values()))
    means = {label: mean_score(each) for label, each in scores.items() if len(each) == batches}
    return sorted(means, key=means.__getitem__, reverse=True)


def best_values(sweep: Experiment, results: RunResults) -> dict[str, float]:
    """Return the base values of the best point."""
    values = best_settings(results).overrides
    return {name: values[name] for name in (*sweep.grid, *sweep.grid_factors)}


def best_settings(results: RunResults) -> RunSettings:
    """Return the settings of the best point at its largest batch, to train on all rows."""
    chosen = ranked_labels(results)[0]
    tried = (run.settings for run in results if run.label == chosen)
    largest = max(tried, key=lambda settings: settings.batch_size)
    return replace(largest, validation_fraction=0.0)


def any_finished(results: RunResults) -> bool:
    """Return whether at least one run did not diverge."""
    return any(not math.isnan(result.auc) for result in results.values())
