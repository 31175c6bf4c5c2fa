"""Write what a search has found: the best settings, a table of the trials and a figure."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from cowclip_merlin.experiments.figures.curves import panels
from cowclip_merlin.experiments.tuning.settings_file import write_settings
from cowclip_merlin.experiments.tuning.space import RANGES, base_rates
from cowclip_merlin.experiments.tuning.study import (
    PATIENCE,
    complete_trials,
    finished_trials,
    optuna,
    outcome_of,
)
from cowclip_merlin.plotting.colors import BLACK, BLUE
from cowclip_merlin.plotting.style import STYLES, save_figure
from cowclip_merlin.system.files import atomic_write
from cowclip_merlin.training.run_settings import RunSettings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from optuna import Study
    from optuna.trial import FrozenTrial


_FEWEST = 4  # complete trials, for an importance


def draw_search(study: Study, trials: Sequence[FrozenTrial], best: FrozenTrial) -> Figure:
    """Draw the panels of a search.

    Args:
        study: of Optuna, for the importance.
        trials: the finished ones, in order.
        best: the best of the complete ones.

    Returns:
        A matplotlib `Figure`.
    """
    importance = _importance(study)
    figure, axes = panels(3 if importance else 2)
    _draw_history(axes[0], trials)
    _draw_epochs(axes[1], best)
    if importance:
        _draw_importance(axes[2], importance)
    return figure


def _draw_history(axes: Axes, trials: Sequence[FrozenTrial]) -> None:
    """Draw the best AUC of each trial, and the best one so far of the complete trials."""
    found = [(trial.number, outcome_of(trial)) for trial in trials]
    scored = [(number, 100 * each.auc, each) for number, each in found if each.epochs]
    whole = [(number, auc) for number, auc, each in scored if each.is_complete]
    others = [(number, auc) for number, auc, each in scored if not each.is_complete]
    for label, points, look in (("complete", whole, 0), ("pruned or diverged", others, 1)):
        how = STYLES[look] | {"linestyle": "none"}
        axes.plot([n for n, _ in points], [auc for _, auc in points], label=label, ms=4, **how)
    so_far = list(accumulate((auc for _, auc in whole), max))
    axes.step([n for n, _ in whole], so_far, where="post", label="best", color=BLACK, lw=1)
    axes.set(title="trials", xlabel="trial", ylabel="validation AUC, %")
    _keep_in_view(axes, [auc for _, auc, _ in scored])
    axes.legend(fontsize=8, frameon=False, loc="lower right")
    _whole_numbers(axes)


def _keep_in_view(axes: Axes, aucs: Sequence[float]) -> None:
    """Limit the axis to the better three quarters: poor trials would flatten the others."""
    ordered = sorted(aucs)
    low, high = ordered[len(ordered) // 4], ordered[-1]
    if high > low:
        axes.set_ylim(low - 0.15 * (high - low), high + 0.1 * (high - low))


def _draw_epochs(axes: Axes, best: FrozenTrial) -> None:
    outcome = outcome_of(best)
    aucs, epoch = [100 * auc for auc in outcome.aucs], outcome.best_epoch
    axes.plot(range(1, len(aucs) + 1), aucs, **STYLES[0], markersize=4)
    axes.axvline(epoch, color=BLACK, linewidth=0.8, linestyle=":")
    title = f"trial {best.number}, the best: epoch {epoch}"
    axes.set(title=title, xlabel="epoch", ylabel="validation AUC, %")
    _whole_numbers(axes)


def _draw_importance(axes: Axes, importance: dict[str, float]) -> None:
    names = list(importance)[::-1]
    axes.barh(names, [importance[name] for name in names], color=BLUE)
    axes.set(title="importance (PED-ANOVA)", xlabel="share of the variance")


def _whole_numbers(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10, min_n_ticks=1))


def _importance(study: Study) -> dict[str, float]:
    """Return the importance of each parameter that every complete trial has; {} with few trials.

    PED-ANOVA (Watanabe et al., arXiv 2304.10255) compares the better tenth of the trials with all
    of them.
    """
    if len({trial.value for trial in complete_trials(study)}) < _FEWEST:
        return {}
    importance = optuna().importance
    try:
        with warnings.catch_warnings():  # few trials have the clip, and so an `r`
            warnings.simplefilter("ignore", UserWarning)
            evaluator = importance.PedAnovaImportanceEvaluator()
            found = importance.get_param_importances(study, evaluator=evaluator)
    except (RuntimeError, ValueError):  # no parameter varies
        return {}
    return dict(found)


COLUMNS = (
    "trial",
    "start",
    "ended",
    "validation_auc",
    "validation_auc_error",
    "validation_log_loss",
    "best_epoch",
    "epochs",
    "seconds",
    "base_batch_size",
    "rule",
    "clip",
    *RANGES,
)
"""Columns of `trials.csv`; the rates are those at the base batch size.

With several labels, the metrics of each follow in further columns.
"""


def best_trial(study: Study) -> FrozenTrial:
    """Return the complete trial with the best validation AUC, the first one of equals; or None."""
    return max(complete_trials(study), key=lambda trial: trial.value, default=None)


def settings_of(trial: FrozenTrial) -> RunSettings:
    """Return the settings with which a trial was trained."""
    return RunSettings.from_dict(trial.user_attrs["settings"])


def final_settings(trial: FrozenTrial) -> RunSettings:
    """Return the settings that train a trial's best epoch on all train rows.

    A plateau needs the held-out rows again: the run then trains on the others, as the trial did.
    All rates are written out, unless the preset has values of its own for a large batch.
    """
    found = settings_of(trial)
    if found.lr_schedule == "plateau":
        found = replace(found, early_stopping=PATIENCE)
    else:
        epochs = outcome_of(trial).best_epoch
        how = {"validation_fraction": 0.0, "validation_split": "random"}
        how["reset_embeddings"] = found.reset_embeddings and epochs > 1
        found = replace(found, epochs=epochs, **how)
    filled = replace(found, overrides={**base_rates(found), **found.overrides})
    same = filled.hyperparameters("table") == found.hyperparameters("table")
    return filled if same else found


def write_trials(out: Path, study: Study) -> None:
    """Write the table of trials and the best settings so far."""
    trials = finished_trials(study)
    path = out / "trials.csv"
    with atomic_write(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        found = dict.fromkeys(name for each in trials for name in outcome_of(each).targets)
        writer = csv.DictWriter(file, [*COLUMNS, *found])
        writer.writeheader()
        writer.writerows(map(_row, trials))
    best = best_trial(study)
    if best is not None:
        comment = (
            f"By cowclip tune: validation AUC {best.value:.5f} in trial {best.number} of "
            f"{len(trials)}. Train with: cowclip train DATA --settings settings.yaml --out RUN"
        )
        write_settings(out / "settings.yaml", final_settings(best), comment=comment)


def _row(trial: FrozenTrial) -> dict[str, object]:
    settings, found = settings_of(trial), outcome_of(trial)
    names = ("ended", "best_epoch", "epochs", "seconds")
    scores = ("auc", "auc_error", "log_loss") if found.epochs else ()
    return {
        "trial": trial.number,
        "start": trial.user_attrs.get("start", "search"),
        **{name: getattr(found, name) for name in names},
        **{f"validation_{name}": getattr(found, name) for name in scores},
        "base_batch_size": settings.base_batch_size,
        "rule": settings.rule,
        "clip": settings.effective_clip,
        **base_rates(settings),
        **found.targets,
    }


def write_figure(out: Path, study: Study) -> None:
    """Write `history.svg`, if a trial is complete."""
    best = best_trial(study)
    if best is not None:
        save_figure(draw_search(study, finished_trials(study), best), out / "history.svg")
