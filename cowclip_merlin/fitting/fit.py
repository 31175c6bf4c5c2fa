"""Prepare, train and evaluate in one call: columns are guessed, and the result is compared."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cowclip_merlin.addresses import FilePath
from cowclip_merlin.errors import InputError
from cowclip_merlin.fitting.baselines import Baseline, baselines
from cowclip_merlin.recipe import MOST_EPOCHS, PATIENCE, VALIDATION_FRACTION, choose
from cowclip_merlin.settings import words_of
from cowclip_merlin.system.console import note, phase
from cowclip_merlin.train import train
from cowclip_merlin.training.evaluation import Evaluation
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.training.scoring.importance import importance
from cowclip_merlin.training.trained_run import evaluate_run
from cowclip_merlin.workflows.guess import Guess
from cowclip_merlin.workflows.guessed import GuessedLog, guessed_log, new_run_folder
from cowclip_merlin.workflows.prepare_settings import PrepareSettings
from cowclip_merlin.workflows.prepared.folder import DATA
from cowclip_merlin.workflows.raw.frames import Frame, is_frame

if TYPE_CHECKING:
    import pandas as pd


_SHOWN = 8  # columns
REFITTED = {
    "validation_fraction": VALIDATION_FRACTION,
    "early_stopping": PATIENCE,
    "epochs": MOST_EPOCHS,
}
"""Settings that choose the number of epochs."""


@dataclass(frozen=True, kw_only=True)
class FitReport:
    """What a call of `fit` found.

    Attributes:
        guess: the roles of the columns.
        model: name of the model.
        test: metrics of the run on the test rows.
        baselines: simpler predictions of the same rows.
        columns: `importance` of each column on these rows.
    """

    guess: Guess = field(repr=False)
    model: str
    test: Evaluation
    baselines: tuple[Baseline, ...]
    columns: pd.DataFrame = field(repr=False)

    def __str__(self) -> str:
        """Return the comparison and the columns that matter as lines of text."""
        error = self.test.auc_error
        rows = [(each.name, f"{each.auc:.4f}", f"{each.log_loss:.4f}") for each in self.baselines]
        auc = f"{self.test.auc:.4f}" + ("" if error != error else f" ± {error:.4f}")
        rows.append((self.model, auc, f"{self.test.log_loss:.4f}"))
        rows.insert(0, (f"{self.test.rows:,} test rows", "AUC", "log loss"))
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = [f"{a:{widths[0]}}  {b:{widths[1]}}  {c:>{widths[2]}}" for a, b, c in rows]
        some = self.columns[:_SHOWN]
        table = zip(some["column"], some["auc_lost"].round(3) + 0.0)  # no minus in front of 0
        lost = ", ".join(f"{name} {value:.3f}" for name, value in table)
        others = len(self.columns) - len(some)
        lost += f"; less in {others} other column{'s'[: others != 1]}" if others else ""
        return "\n".join([*lines, f"AUC lost if a column is shuffled: {lost}"])


def fit_run(
    rows: Frame | str | FilePath | Sequence[str | FilePath],
    label: str,
    *,
    out: str | Path,
    roles: Mapping[str, Sequence[str]] | None = None,
    prepared: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    refit: bool = False,
    device: str = "auto",
) -> FitReport:
    """Guess the columns, prepare the rows in `out`/data, train in `out`, and evaluate.

    It prints what it does.

    Args:
        rows: rows in memory, or raw files.
        label: name of the label, of 0 and 1.
        out: the run folder, which must be new.
        roles: role -> columns that have it, whatever they look like; see `guess_columns`.
        prepared: further arguments of `PrepareSettings`.
        settings: arguments of `RunSettings`; the others follow from the rows.
        refit: hold out rows to choose the number of epochs, and train again on all; see `train`.
        device: "auto", "cpu" or "gpu".

    Raises:
        InputError: if an input is wrong; `out` is not there then, unless training has begun.
        Stopped: after SIGINT or SIGTERM; a checkpoint is written first.
    """
    if (prepared or {}).get("test_fraction") == 0:
        raise InputError(
            "`test_fraction` is 0, but fit compares the model on test rows; give more, or use "
            "cowclip prepare and cowclip train"
        )
    settings = dict(settings or {})
    if refit:
        settings = {**REFITTED, **settings}
    with (
        guessed_log(rows, label, given=roles, **prepared or {}) as log,
        new_run_folder(out) as folder,
    ):
        note(log.guess.table())
        if not is_frame(rows):
            note("\n".join(["the same in two commands:", *_commands(log, out, settings, refit)]))
        with phase("prepare"):
            data = log.prepare(folder / DATA)
        chosen, words = choose(data, settings)
        note(words)
        with phase("train"):
            train(data.path, chosen, out=folder, refit=refit, device=device)
    with phase("evaluate"):
        test = evaluate_run(folder, data.path, device=device)
    with phase("fit the baselines"):
        simple = baselines(data, seed=chosen.seed)
    with phase("shuffle the columns"):
        columns = importance(folder, seed=chosen.seed, data=data.path, device=device)
    report = FitReport(
        guess=log.guess, model=chosen.model, test=test, baselines=simple, columns=columns
    )
    print(report)
    best = max(report.baselines, key=lambda each: each.auc)
    if best.auc > report.test.auc + report.test.auc_error and not is_frame(rows):
        words = shlex.join(["cowclip", "tune", f"{out}/{DATA}", "--out", "TUNED"])
        note(f"{best.name} is better on these rows; a search may help: {words}")
    return report


def _commands(
    log: GuessedLog, out: str | Path, settings: Mapping[str, Any], refit: bool
) -> list[str]:
    """Return the commands that prepare and train as `fit_run` does, in folders of their own."""
    data = f"{out}-data"
    known = {k: v for k, v in log.settings.items() if k not in ("kind", "files")}
    words = ["prepare", "table", *map(str, log.files), "--out", data]
    train = ["train", data, "--out", f"{out}-run", *words_of(RunSettings, settings)]
    train += ["--refit"] if refit else []
    return [
        "  " + shlex.join(["cowclip", *each])
        for each in ([*words, *words_of(PrepareSettings, known)], train)
    ]
