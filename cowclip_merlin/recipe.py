"""Settings for a table of one's own, from its numbers of rows and ids.

The paper's presets are for Criteo and Avazu: tens of millions of rows and ten epochs. On smaller
logs these rates learn little, or ten epochs overfit. The values here are those of one fixed recipe
that did best on validation rows of several logs; benchmarks/results/notes/recipe.md has the
measurements.

>>> at = recipe_for(rows=90_009, ids=38_000)
>>> at.base.batch_size, at.base.embedding_lr, at.epochs, at.rule
(32, 0.001, 5, 'sde')
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cowclip_merlin.scaling import PRESETS, Hyperparameters, scale

if TYPE_CHECKING:
    from cowclip_merlin.training.run_settings import RunSettings
    from cowclip_merlin.workflows import PreparedData

RATE = 1e-3
STEPS = 1600
FEWEST_ROWS_PER_STEP, MOST_ROWS_PER_STEP = 32, 1024
FEW_ROWS = 150_000
FEW_IDS_PER_ROW = 0.1
SCALED = ("embedding_lr", "dense_lr", "l2", "beta_1", "beta_2", "epsilon")
"""Values of the recipe that a run takes over."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings that follow from a table.

    Attributes:
        base: hyper-parameters at their base batch.
        rule: scaling rule from the base batch to the run's.
        epochs: passes over the training rows.
    """

    base: Hyperparameters
    rule: str
    epochs: int


def recipe_for(*, rows: int, ids: int) -> Recipe:
    """Return the recipe for a number of training rows and of distinct ids.

    - The base batch is the largest power of two with `STEPS` steps per epoch, from
      `FEWEST_ROWS_PER_STEP` to `MOST_ROWS_PER_STEP`.
    - Below `FEW_ROWS`, or with fewer than `FEW_IDS_PER_ROW`, five epochs with an L2 that keeps
      rare ids from overfitting. Else one epoch, which needs little L2.

    Args:
        rows: training rows, at least 1.
        ids: distinct ids of all columns together.
    """
    few = rows < FEW_ROWS or ids < FEW_IDS_PER_ROW * rows
    batch = 1 << int(math.log2(max(1, rows / STEPS)))
    base = Hyperparameters(
        batch_size=min(MOST_ROWS_PER_STEP, max(FEWEST_ROWS_PER_STEP, batch)),
        embedding_lr=RATE,
        dense_lr=RATE,
        l2=float(f"{(60 if few else 2) / rows:.2g}"),
    )
    return Recipe(base=base, rule="sde", epochs=5 if few else 1)


def own_table_defaults(data: PreparedData, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `RunSettings` that follow from a table of one's own.

    For Criteo and Avazu, with a preset and with another optimizer than Adam there are none: the
    defaults of `RunSettings` hold, which are the paper's.

    Args:
        data: the prepared folder.
        given: the arguments that are given. Those among the result win over the recipe's.
    """
    adam = given.get("optimizer", "adam") == "adam"
    rows = data.rows["train"]  # none in a folder of `--like`, which `train` refuses
    if data.kind in PRESETS or given.get("preset") is not None or not adam or not rows:
        return {}
    recipe = recipe_for(rows=rows, ids=sum(data.tables.values()))
    base_batch = given.get("base_batch_size") or recipe.base.batch_size
    base = scale(recipe.base, to=base_batch, rule="sde")
    usual = Hyperparameters()
    rates = {name: getattr(base, name) for name in SCALED}
    rates = {name: value for name, value in rates.items() if value != getattr(usual, name)}
    found = {"base_batch_size": base_batch, "rule": recipe.rule, "epochs": recipe.epochs}
    return found | dict(given) | {"overrides": rates | dict(given.get("overrides", {}))}


def settings_for(
    data: PreparedData | str | Path, *, warm_start: str | Path | None = None, **given: Any
) -> RunSettings:
    """Return the settings of `cowclip train`, whose defaults follow from the data.

    `RunSettings` itself has the paper's defaults. They are also the result for Criteo and Avazu,
    with a preset, and with another optimizer than Adam.

    Args:
        data: the prepared folder.
        warm_start: a run to go on from: its settings, and one epoch, are the defaults then.
        given: arguments of `RunSettings`; without `warm_start` at least `model` and `batch_size`.

    Raises:
        InputError: if the folder is not prepared, or a value is wrong.
    """
    from cowclip_merlin.training.run_settings import RunSettings
    from cowclip_merlin.training.starting.going_on import settings_to_go_on
    from cowclip_merlin.workflows import PreparedData

    if warm_start is not None:
        return settings_to_go_on(warm_start, **given)
    folder = data if isinstance(data, PreparedData) else PreparedData.load(data)
    return RunSettings(**{**given, **own_table_defaults(folder, given)})
