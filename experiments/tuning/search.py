"""Search hyper-parameters on validation rows: trial after trial, until the budget is spent."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from cowclip_merlin.addresses import FilePath, output_folder
from cowclip_merlin.checks import check_at_least_one, check_positive
from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.figures import panels, whole_numbers
from cowclip_merlin.experiments.tuning.search_space import (
    RANGES,
    SearchSpace,
    base_rates,
    first_settings,
)
from cowclip_merlin.experiments.tuning.settings_file import write_settings
from cowclip_merlin.experiments.tuning.trials import (
    PATIENCE,
    STUDY,
    TrialContext,
    check_folder,
    complete_trials,
    enqueue_missing,
    finished_trials,
    make_sampler,
    open_study,
    optuna,
    outcome_of,
    run_trial,
)
from cowclip_merlin.loading import open_columns, train_validation_split, validation_rows
from cowclip_merlin.plotting.colors import BLACK, BLUE
from cowclip_merlin.plotting.style import STYLES, save_figure
from cowclip_merlin.scaling import PRESETS
from cowclip_merlin.system.console import progress
from cowclip_merlin.system.folders import NewFiles, lock_folder
from cowclip_merlin.system.records import write_rows
from cowclip_merlin.targets import refuse_number_first
from cowclip_merlin.training.build import build_optimizer, check_table_memory, choose_device
from cowclip_merlin.training.evaluation import check_targets_scored
from cowclip_merlin.training.run import check_sizes
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.workflows import PreparedData

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from optuna import Study
    from optuna.trial import FrozenTrial


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """What a search has found.

    Attributes:
        settings: train with them on all train rows (with a plateau, on those not held out);
            `settings.yaml` has the same.
        trial: number of the best trial.
        validation_auc: its AUC on validation rows, which is optimistic: it is the best of many.
            Of several labels, that of the first.
        best_epoch: its best epoch, which is `settings.epochs`.
        trials: number of finished trials, those before a resume included.
        ended: how the trials ended -> their number.
        starts: name of the settings tried first -> their validation AUC, if that trial is complete.
        targets: with several labels, the metrics of each in the best epoch of the best trial, by
            their columns in `metrics.csv`.
    """

    settings: RunSettings
    trial: int
    validation_auc: float
    best_epoch: int
    trials: int
    ended: dict[str, int]
    starts: dict[str, float]
    targets: Mapping[str, float] = field(default_factory=dict)


def tune(
    data: str | FilePath,
    settings: RunSettings,
    *,
    out: str | FilePath,
    trials: int | None = None,
    minutes: float | None = None,
    resume: bool = False,
    device: str = "auto",
) -> Tuned:
    """Search the embedding and dense rate, L2, the clip and r, and the number of epochs.

    Optuna's TPE chooses each trial from those before. A trial trains at the batch size of
    `settings` on the train rows that are not held out, and counts with its best epoch. It ends
    after two epochs without a better one. It is pruned if its AUC is below the median of the
    trials before at the same epoch. The first two trials have the defaults of `cowclip train`,
    and rates by the formula of docs/experiments.md. Of several labels, the first one decides. No
    test row is read.

    Args:
        data: folder that `prepare` wrote. If it was split by time, the last train rows are held
            out; else random ones; with `validation_split` "given" those of `prepare --validation`.
        settings: what all trials share. `epochs` is the most that a trial trains. A `clip` that
            is not None and the rates in `overrides` are kept and not searched.
            `validation_fraction` is the share of the train rows to hold out, and `seed` that of
            the weights, the row order and the search.
        out: folder for `settings.yaml`, `trials.csv`, `history.svg`, the study and the run folders
            of the trials, without checkpoints. One at an address is made in `TMPDIR` and uploaded
            at the end or when the search stops.
        trials: number of trials in all, those before a resume included; None: no limit.
        minutes: minutes of this call; the trial that runs then ends after its epoch. None: no
            limit.
        resume: go on with the search in `out`, which must have the same settings and data.
        device: "auto", "cpu" or "gpu".

    Raises:
        InputError: if an input is wrong, or every trial diverged.
        Stopped: after SIGINT or SIGTERM; all finished trials are kept.

    Example:
        >>> from cowclip_merlin.training import RunSettings
        >>> run = RunSettings(model="deepfm", batch_size=4096, rule="sde", validation_fraction=0.1)
        >>> tune("no such folder", run, out="TUNED", trials=20)
        Traceback (most recent call last):
        ...
        cowclip_merlin.errors.InputError: no such folder: no such folder; create it with cowclip prepare
    """  # noqa: E501
    _check_budget(trials, minutes)
    with output_folder(out, STUDY, resume=resume, what="search") as folder:
        return _tune_in(data, settings, trials, minutes, resume, device, folder)


def _tune_in(
    data: str | FilePath,
    settings: RunSettings,
    trials: int | None,
    minutes: float | None,
    resume: bool,
    device: str,
    out: Path,
) -> Tuned:
    """Search in a folder of this machine."""
    check_folder(out, resume=resume)
    prepared = PreparedData.load(data)
    refuse_number_first("a search", prepared.targets)
    settings.multi_task_of(prepared.targets)  # refuses what they cannot have
    space = SearchSpace(shared=_shared(settings, prepared))
    check_sizes(prepared, space.shared)
    optuna()
    rows = prepared.rows["train"]
    if settings.validation_fraction:
        rows -= validation_rows(rows, settings.validation_fraction)
    starts = first_settings(space, prepared, rows=rows, preset=settings.preset)
    new = NewFiles.since_now(out)
    with lock_folder(out, "another process searches there; use another `out`"):
        try:
            check_folder(out, resume=resume)  # another process may have searched since
            with open_study(out, space.shared, prepared.fingerprint) as study:
                _check_training(prepared, space, device)
                for name, first in starts.items():
                    enqueue_missing(study, name, space.nearest(first), first)
                context = TrialContext(
                    data=prepared.path,
                    out=out,
                    device=device,
                    deadline=None if minutes is None else time.monotonic() + 60 * minutes,
                )
                _search(study, space, context, trials)
                return _finish(study, out)
        except InputError:
            if not (out / "trials.csv").exists():  # no trial has finished
                new.remove()
            raise


def _check_budget(trials: int | None, minutes: float | None) -> None:
    if trials is None and minutes is None:
        raise InputError("neither trials nor minutes is given; give one, or the search has no end")
    if trials is not None:
        check_at_least_one({"`trials`": trials})
    if minutes is not None:
        check_positive({"`minutes`": minutes})


def _shared(settings: RunSettings, data: PreparedData) -> RunSettings:
    """Return the settings of all trials, with the data's preset and way to hold out rows."""
    if settings.scored_split == "test":
        raise InputError(
            "`validation_fraction` is 0; give the share of the train rows to score, such as 0.1"
        )
    if settings.early_stopping is not None:
        raise InputError("early_stopping is given, but a trial ends by itself; omit it")
    if settings.lr_schedule in ("linear", "cosine"):
        raise InputError(
            f"lr_schedule is {settings.lr_schedule!r}, whose rates fall until the last epoch, but "
            "a trial ends at its best one; search with constant, step or plateau"
        )
    for name in ("evaluate_every", "monitor"):
        if (value := getattr(settings, name)) not in (None, "auc"):
            raise InputError(
                f"{name} is {value!r}, but a search compares the AUC after whole epochs; omit it"
            )
    replace(settings, early_stopping=PATIENCE)  # as a trial ends; refuses plateaus without effect
    preset = settings.preset or (data.kind if data.kind in PRESETS else "criteo")
    last = settings.validation_fraction and data.by_time
    return replace(settings, preset=preset, **({"validation_split": "last"} if last else {}))


def _check_training(data: PreparedData, space: SearchSpace, device: str) -> None:
    """Check before the first trial what each trial checks when it starts."""
    shared = space.shared
    check_table_memory(shared, data, choose_device(device))
    for clip in space.clips:
        run = replace(shared, clip=clip)
        build_optimizer(run, run.hyperparameters(data.kind), data, steps=1)
    if shared.validation_fraction:
        how = shared.validation_fraction, shared.validation_split
        train_validation_split(open_columns(data, "train"), *how)
        return
    rows, remedy = open_columns(data, "validation"), "prepare with other rows of `validation`"
    check_targets_scored(
        data.path, "validation", data.targets, rows.labels, rows.weights, remedy=remedy
    )


def _search(study: Study, space: SearchSpace, context: TrialContext, most: int | None) -> None:
    """Run trials until the budget is spent; write the table and the best settings after each."""
    done = len(finished_trials(study))
    began, left = time.monotonic(), context.seconds_left
    counts_trials = most is not None or left is None
    if counts_trials:
        bar = progress(most, initial=done, desc="tune", unit="trial", leave=True)
    else:
        bar = progress(round(left), desc="tune", unit="s", leave=True)
    with bar:
        while (most is None or done < most) and not (done and context.is_over):
            if best := best_trial(study):
                words = f"best validation AUC {best.value:.5f}, trial {best.number}"
                bar.set_postfix_str(words)
            study.sampler = make_sampler(space.shared.seed, done)
            trial = study.ask()
            suggested = space.suggest(trial)
            if "settings" in trial.user_attrs:  # one of the first settings
                suggested = settings_of(trial)
            trial.set_user_attr("settings", suggested.as_dict())
            run_trial(trial, suggested, context)
            write_trials(context.out, study)
            done += 1
            bar.update(1 if counts_trials else round(time.monotonic() - began) - bar.n)


def _finish(study: Study, out: Path) -> Tuned:
    """Write the outputs; return what was found."""
    write_trials(out, study)
    write_figure(out, study)
    best, finished = best_trial(study), finished_trials(study)
    if best is None:
        raise InputError(
            f"{out}: none of {len(finished)} trials is complete; see {out / 'trials.csv'}, and "
            "resume with more, or use a smaller batch"
        )
    ends = [outcome_of(trial).ended for trial in finished]
    first = [trial for trial in complete_trials(study) if "start" in trial.user_attrs]
    return Tuned(
        settings=final_settings(best),
        trial=best.number,
        validation_auc=best.value,
        best_epoch=outcome_of(best).best_epoch,
        trials=len(finished),
        ended={how: ends.count(how) for how in sorted(set(ends))},
        starts={trial.user_attrs["start"]: trial.value for trial in first},
        targets=outcome_of(best).targets,
    )


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
    ordered = sorted(auc for _, auc, _ in scored)
    low, high = ordered[len(ordered) // 4], ordered[-1]
    if high > low:  # only the better three quarters: poor trials would flatten the others
        axes.set_ylim(low - 0.15 * (high - low), high + 0.1 * (high - low))
    axes.legend(fontsize=8, frameon=False, loc="lower right")
    whole_numbers(axes)


def _draw_epochs(axes: Axes, best: FrozenTrial) -> None:
    outcome = outcome_of(best)
    aucs, epoch = [100 * auc for auc in outcome.aucs], outcome.best_epoch
    axes.plot(range(1, len(aucs) + 1), aucs, **STYLES[0], markersize=4)
    axes.axvline(epoch, color=BLACK, linewidth=0.8, linestyle=":")
    title = f"trial {best.number}, the best: epoch {epoch}"
    axes.set(title=title, xlabel="epoch", ylabel="validation AUC, %")
    whole_numbers(axes)


def _importance(study: Study) -> dict[str, float]:
    """Return the importance of each parameter that every complete trial has; {} with few trials.

    PED-ANOVA (Watanabe et al., arXiv 2304.10255) compares the better tenth of the trials with all
    of them.
    """
    if len({trial.value for trial in complete_trials(study)}) < 4:
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
    found = dict.fromkeys(name for each in trials for name in outcome_of(each).targets)
    write_rows(out / "trials.csv", [*COLUMNS, *found], map(_row, trials))
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
    best, importance = best_trial(study), _importance(study)
    if best is None:
        return
    figure, axes = panels(3 if importance else 2)
    _draw_history(axes[0], finished_trials(study))
    _draw_epochs(axes[1], best)
    if importance:
        names = list(importance)[::-1]
        axes[2].barh(names, [importance[name] for name in names], color=BLUE)
        axes[2].set(title="importance (PED-ANOVA)", xlabel="share of the variance")
    save_figure(figure, out / "history.svg")
