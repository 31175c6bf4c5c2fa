"""Train again on all rows, for the epochs that early stopping chose on held-out ones.

The second run has the settings of the first, from initial values, and the place of it. It scores
the test rows, and keeps the metrics of the first one in `HELD_OUT_METRICS`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cowclip_merlin.errors import InputError
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.training.stopping.early_stopping import Rows, best_row, epoch_words, score_of

if TYPE_CHECKING:
    from cowclip_merlin.workflows import PreparedData


def check_refit(settings: RunSettings, data: PreparedData) -> None:
    """Check before long work that a run can be trained again for its best number of epochs.

    Raises:
        InputError: if nothing chooses the epochs, or they say nothing about a run on all rows.
    """
    if settings.early_stopping is None:
        raise InputError(
            "`refit` trains again for the epochs that early stopping chose; add `early_stopping` 2 "
            "and `validation_fraction` 0.1"
        )
    if settings.evaluate_every is not None:
        raise InputError("`refit` needs whole epochs; omit `evaluate_every`")
    if settings.lr_schedule not in ("constant", "step"):
        raise InputError(
            f"`refit` cannot repeat rates that fall by `lr_schedule` {settings.lr_schedule}, as "
            "they depend on the rows held out or on all epochs; use constant or step"
        )
    if not data.rows["test"]:
        raise InputError(f"{data.path}: has no test rows, which the run of `refit` scores")


def refit_settings(settings: RunSettings, rows: Rows) -> tuple[RunSettings, str]:
    """Return the settings of the run on all rows, and a line about them.

    Args:
        settings: of the run that held out rows.
        rows: its metrics.

    >>> settings = RunSettings(
    ...     model="dcn", batch_size=8, validation_fraction=0.1, early_stopping=1, epochs=9
    ... )
    >>> rows = [{"epoch": n, "validation_auc": auc} for n, auc in ((1, 0.5), (2, 0.75), (3, 0.7))]
    >>> again, words = refit_settings(settings, rows)
    >>> again.epochs, again.scored_split, words
    (2, 'test', 'epoch 2 of 3 (best on validation rows) has AUC 0.75000; trains again on these \
rows, too: 2 epochs')
    """
    best = best_row(rows, "validation", settings.monitor)
    epochs, score = round(best["epoch"]), score_of(best, "validation", settings.monitor)
    again = replace(
        settings,
        epochs=epochs,
        early_stopping=None,
        validation_fraction=0.0,
        validation_split="none" if settings.validation_split == "given" else "random",
        monitor="auc",
        reset_embeddings=settings.reset_embeddings and epochs > 1,
    )
    return again, (
        f"{epoch_words(rows, settings.monitor)} has {score.name} {score.value:.5f}; trains again "
        f"on these rows, too: {epochs} epoch{'s'[: epochs != 1]}"
    )
