"""When a plateau of the validation score lowers the rates of a run, and when it ends the run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cowclip_merlin.training.stopping.best_epoch import Rows, best_index, score_of

if TYPE_CHECKING:
    from cowclip_merlin.training.run_settings import RunSettings


def plateau_falls(rows: Rows, settings: RunSettings) -> list[int]:
    """Return after which scorings a plateau lowers the rates, as indexes of `rows`.

    As in Keras's `ReduceLROnPlateau` with `min_delta=0`: after `lr_patience` scorings without a
    better one, until the rates are at their floor. Each fall starts the count again.

    >>> from cowclip_merlin.training import RunSettings
    >>> settings = RunSettings(
    ...     model="dcn", batch_size=8, validation_fraction=0.1, lr_schedule="plateau", lr_patience=2
    ... )
    >>> plateau_falls([{"validation_auc": x} for x in (0.7, 0.6, 0.7, 0.8, 0.8)], settings)
    [2]
    """
    best, waited, falls = -math.inf, 0, []
    for index, row in enumerate(rows):
        goodness = score_of(row, settings.scored_split, settings.monitor).goodness
        if goodness > best:
            best, waited = goodness, 0
            continue
        waited += 1
        at_floor = math.isclose(lowered(settings, len(falls)), settings.rate_floor)
        if waited >= settings.lr_patience and not at_floor:
            falls.append(index)
            waited = 0
    return falls


def lowered(settings: RunSettings, falls: int) -> float:
    """Return the factor of the rates after so many falls."""
    return max(settings.lr_factor**falls, settings.rate_floor)


def scorings_without_better(rows: Rows, settings: RunSettings) -> int:
    """Count the last scorings without a better one; a fall of a plateau starts the count again.

    So a run that stops early has trained with the smaller rate, too.
    """
    falls = plateau_falls(rows, settings) if settings.lr_schedule == "plateau" else []
    best = best_index(rows, settings.scored_split, settings.monitor)
    return len(rows) - 1 - max([best, *falls])
