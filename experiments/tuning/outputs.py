"""Write what a search has found: the best settings, a table of the trials and a figure."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cowclip_merlin.experiments.tuning.figure import draw_search
from cowclip_merlin.experiments.tuning.settings_file import write_settings
from cowclip_merlin.experiments.tuning.space import RANGES, base_rates
from cowclip_merlin.experiments.tuning.study import complete_trials, finished_trials
from cowclip_merlin.experiments.tuning.trial_run import PATIENCE, outcome_of
from cowclip_merlin.plotting.style import save_figure
from cowclip_merlin.system.files import atomic_write
from cowclip_merlin.training.run_settings import RunSettings

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

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
