"""Settings for a table of one's own, from its numbers of rows and ids.

The paper's presets are for Criteo and Avazu: tens of millions of rows and ten epochs. On smaller
logs these rates learn little, or ten epochs overfit. The values here are those of one recipe that
was chosen on validation rows of several logs; benchmarks/not-adopted.md has the measurements.

>>> at = recipe_for(rows=90_009, ids=38_000)
>>> at.base.batch_size, at.base.embedding_lr, at.epochs, at.rule
(32, 0.001, 2, 'sde')
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cowclip_merlin import choices
from cowclip_merlin.errors import InputError
from cowclip_merlin.scaling import PRESETS, Hyperparameters, scale

if TYPE_CHECKING:
    from cowclip_merlin.training.run_settings import RunSettings
    from cowclip_merlin.workflows import PreparedData

MODEL = "deepfm"
AUTO = "auto"
"""The update that a run does not have: it stands for "exact" or "dense"."""

RATE = 1e-3
ADAGRAD_RATE = 0.05
ADAGRAD_SUM = 0.1
"""The initial accumulator for sums of gradients; those of means take it over base batch squared."""
STEPS = 1600
FEWEST_ROWS_PER_STEP, MOST_ROWS_PER_STEP = 32, 1024
BATCH_STEPS = STEPS // 8  # the recipe was measured at 8 times its base batch
MLP = (200, 200)
MOST_PASSES = 5
L2_OF_ROWS = 2.4
"""L2 times the training rows, where each id comes once."""
MANY_ROWS, MOST_OFTEN = 200_000, 4
"""In a log of more rows, ids must come more often to get as many passes, up to 4 times as often.
Three passes over 2.7 million flights of 3.6 rows per id lost 2.7 points of AUC."""
MEMORY_STEPS = 1000
"""Steps that Adam's second moments remember: 1 / (1 - beta_2), with beta_2 = 0.999."""
RARE_SHARE, FEWEST_MEMORIES = 0.9, 10
"""CowClip's rule matched the small batch above both: 96% of ids were rare, in a log of 40 memories.
It did not with 82%, nor in shorter logs, whose rare ids come once or twice; docs/results.md."""
VALIDATION_FRACTION = 0.1
MOST_EPOCHS, PATIENCE = 10, 2
"""How a run on a table of one's own ends that scores the rows of `prepare --validation`."""
HELD_OUT = ("validation_fraction", "validation_split")
"""Settings that say which rows are held out."""
SCALED = ("embedding_lr", "dense_lr", "l2", "beta_1", "beta_2", "epsilon", "initial_accumulator")
"""Values of the recipe that a run takes over."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings that follow from a table.

    Attributes:
        base: hyper-parameters at their base batch.
        rule: scaling rule from the base batch to the run's.
        epochs: passes over the training rows.
        mlp: widths of the hidden layers.
    """

    base: Hyperparameters
    rule: str
    epochs: int
    mlp: tuple[int, ...]


def recipe_for(*, rows: int, ids: int, optimizer: str = "adam") -> Recipe:
    """Return the recipe for a number of training rows and of distinct ids.

    - The base batch is the largest power of two with `STEPS` steps per epoch, from
      `FEWEST_ROWS_PER_STEP` to `MOST_ROWS_PER_STEP`.
    - The passes are the rows per id, from 1 to `MOST_PASSES`: where most ids come once, a second
      pass overfits. Above `MANY_ROWS`, they are fewer. L2 grows with their square, since a single
      pass needs little.
    - The hidden layers are small: wider ones overfit sooner on small logs.
    - Adagrad has other rates, no L2, and so one epoch.

    Args:
        rows: training rows, at least 1.
        ids: distinct ids of all columns together, at least 1.
        optimizer: one of `choices.OPTIMIZERS`.
    """
    adam, often = optimizer == "adam", min(MOST_OFTEN, max(1, rows / MANY_ROWS))
    passes = min(MOST_PASSES, max(1, rows / ids / often))
    size = max(FEWEST_ROWS_PER_STEP, _batch_with_steps(rows, STEPS))
    rate = RATE if adam else ADAGRAD_RATE
    base = Hyperparameters(batch_size=size, embedding_lr=rate, dense_lr=rate, optimizer=optimizer)
    if adam:
        base = replace(base, l2=float(f"{L2_OF_ROWS * passes**2 / rows:.2g}"))
    else:
        base = replace(base, l2=0.0, initial_accumulator=float(f"{ADAGRAD_SUM / size**2:.2g}"))
    return Recipe(base=base, rule="sde", epochs=int(passes) if adam else 1, mlp=MLP)


def usual_batch(rows: int, *, by_rows: bool = True) -> int:
    """Return the batch size for a number of training rows.

    Args:
        rows: training rows.
        by_rows: whether the recipe holds; else the paper's values do, and so their base batch.

    >>> [usual_batch(rows) for rows in (50, 500, 9_000, 90_000, 900_000)]
    [2, 2, 32, 256, 1024]
    """
    if not by_rows and rows >= MOST_ROWS_PER_STEP:
        return MOST_ROWS_PER_STEP
    return max(2, _batch_with_steps(rows, BATCH_STEPS))


def _batch_with_steps(rows: int, steps: int) -> int:
    """Return the largest power of two that makes so many steps, up to `MOST_ROWS_PER_STEP`."""
    return min(MOST_ROWS_PER_STEP, 1 << int(math.log2(max(1, rows / steps))))


def own_table_defaults(data: PreparedData, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `RunSettings` that follow from a table of one's own.

    For Criteo and Avazu, and with a preset, there are none: the defaults of `RunSettings` hold,
    which are the paper's.

    Args:
        data: the prepared folder.
        given: the arguments that are given. Those among the result win over the recipe's.
    """
    optimizer = given.get("optimizer", "adam")
    rows = data.rows["train"]  # none in a folder of `--like`, which `train` refuses
    if data.kind in PRESETS or given.get("preset") is not None or not rows:
        return {}
    recipe = recipe_for(rows=rows, ids=sum(data.tables.values()), optimizer=optimizer)
    base_batch = given.get("base_batch_size") or recipe.base.batch_size
    base = scale(recipe.base, to=base_batch, rule="sde")
    usual = Hyperparameters()
    rates = {name: getattr(base, name) for name in SCALED}
    rates = {name: value for name, value in rates.items() if value != getattr(usual, name)}
    found = {"base_batch_size": base_batch, "rule": recipe.rule, "epochs": recipe.epochs}
    found |= {"mlp": recipe.mlp}
    return found | dict(given) | {"overrides": rates | dict(given.get("overrides", {}))}


def held_out(data: PreparedData, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `RunSettings` that hold out rows, unless others say which ones.

    The rows are those of `prepare --validation`, if there are any. A share of the train rows of
    one's own table are the last ones if `prepare` split it by time.

    Args:
        data: the prepared folder.
        given: the arguments that are given.
    """
    found = {name: given[name] for name in HELD_OUT if name in given}
    if "validation" in data.rows and not found:
        return {"validation_split": "given"}
    if found.get("validation_fraction") and data.by_time and data.kind not in PRESETS:
        found.setdefault("validation_split", "last")
    return found


def update_words(settings: RunSettings, kind: str) -> tuple[str, str]:
    """Return the update that "auto" means, and why.

    It is "exact" if that gives the numbers of "dense". The optimizer can postpone Adam's steps, but
    Adagrad's only without L2, and a clip must not act on the L2 gradient of absent rows.

    Args:
        settings: of the run, with any update.
        kind: of the data: "criteo", "avazu" or "table".
    """
    values, clips = settings.hyperparameters(kind), choices.CLIPS
    clip = clips[settings.effective_clip]
    if settings.optimizer != "adam" and values.l2:
        return "dense", "exact needs Adam, or no L2"
    if not clip.spares_absent_rows:
        known = [name for name in reversed(clips) if clips[name].spares_absent_rows]
        return "dense", f"exact is for the clips {' and '.join(known)}"
    if "r" in clip.settings and 2 * values.l2 > values.r:
        return "dense", "L2 alone would be clipped: 2 * l2 is above r"
    return "exact", "the result of dense, in less time if ids are many"


def rare_share(data: PreparedData, memory: int) -> tuple[float, int]:
    """Return the share of ids that occur less than once in `memory` rows, and the number of ids.

    Raises:
        InputError: if a file of counts is missing or damaged.
    """
    from cowclip_merlin.workflows.prepared.counts import frequencies

    rare, ids = 0, 0
    for name in data.log_format.tables:
        counts = frequencies(data, name)
        rare += int(np.count_nonzero(counts * memory < data.fitted_rows))
        ids += len(counts)
    return rare / max(ids, 1), ids


def rule_words(data: PreparedData, base_batch: int | None = None) -> str:
    """Say which scaling rule fits the ids of a table, in one line; "" if it cannot be told.

    Args:
        data: the prepared folder.
        base_batch: of the run; None: that of `cowclip train`.
    """
    if not data.rows["train"]:  # a folder of `--like`
        return ""
    own = own_table_defaults(data, {}).get("base_batch_size", Hyperparameters.batch_size)
    memory = MEMORY_STEPS * (base_batch or own)
    with suppress(InputError):  # training says what is damaged
        share, ids = rare_share(data, memory)
        if not ids:
            return ""
        papers = share >= RARE_SHARE and data.fitted_rows >= FEWEST_MEMORIES * memory
        rules = "the rules sde and cowclip fit" if papers else "the rule sde fits"
        return f"{share:.0%} of {ids:,} ids are rarer than one in {memory:,} rows: {rules}"
    return ""


def choose(
    data: PreparedData | None, given: Mapping[str, Any], *, go_on: bool = False
) -> tuple[RunSettings, str]:
    """Return the settings of a run in which some are not given, and say what was chosen.

    Args:
        data: the prepared folder; None: one that cannot be read, as training will say.
        given: arguments of `RunSettings`; `update` may also be "auto".
        go_on: the given rates and epochs are those of an earlier run, and stay.

    Returns:
        The settings, and what was chosen, in a line or two; "" if nothing was.

    Raises:
        InputError: if a value is wrong.
    """
    from cowclip_merlin.training.run_settings import RunSettings

    by_rows = own_table_defaults(data, given) if data and not go_on else {}
    held = held_out(data, given) if data else {}
    found = {"model": MODEL, "batch_size": 1, **given, **by_rows, **held}
    stops = given.get("early_stopping", PATIENCE)  # 0 and None: never
    if by_rows and held.get("validation_split") == "given" and stops:
        usual = {"epochs": MOST_EPOCHS, "early_stopping": PATIENCE}
        found |= usual | {name: given[name] for name in usual if name in given}
    auto = found.setdefault("update", AUTO) == AUTO
    settings = RunSettings(**found | ({"update": "dense"} if auto else {}))
    rows = 0 if data is None else data.rows["train"]  # none in a folder of `--like`, either
    words = [] if "model" in given else [f"model {MODEL}"]
    if "batch_size" not in given:
        trained = int(rows * (1 - settings.validation_fraction))
        settings = replace(settings, batch_size=usual_batch(trained, by_rows=bool(by_rows)))
        words.append(f"batch {settings.batch_size:,}")
    if auto:
        update, why = update_words(settings, "table" if data is None else data.kind)
        settings = replace(settings, update=update)
        words.append(f"update {update} ({why})")
    if by_rows:
        rates = ", ".join(f"{name} {value:.3g}" for name, value in settings.overrides.items())
        widths = "-".join(map(str, settings.mlp))
        words.append(
            f"MLP {widths}, {_epochs_words(settings)}, rule {settings.rule}, at base batch "
            f"{settings.base_batch_size} {rates}"
        )
    if not words or not rows:
        return settings, ""
    log = f"{data.kind} log" if data and data.kind in PRESETS else "your own table"
    said = [f"{log} of {rows:,} training rows: {', '.join(words)}"]
    if data is not None and settings.optimizer == "adam" and not go_on:
        said.append(rule_words(data, settings.base_batch_size))
    return settings, "\n".join(filter(None, said))


def _epochs_words(settings: RunSettings) -> str:
    """Say how many epochs a run trains, and which one it keeps."""
    if settings.early_stopping is None:
        return f"{settings.epochs} epoch{'s'[: settings.epochs != 1]}"
    return f"at most {settings.epochs} epochs, of which it keeps the best on the validation rows"


def choose_search(data: PreparedData, given: Mapping[str, Any]) -> tuple[RunSettings, str]:
    """Return what the trials of a search share where it is not given, and say what was chosen.

    Model, batch and held-out rows are those of `choose`; a search always holds out rows.

    Args:
        data: the prepared folder.
        given: arguments of `RunSettings`.

    Raises:
        InputError: if a value is wrong.
    """
    from cowclip_merlin.training.run_settings import RunSettings

    names = ("preset", "optimizer", "base_batch_size")
    own = own_table_defaults(data, {n: given[n] for n in names if given.get(n) is not None})
    held = held_out(data, given)
    if held.get("validation_split") != "given":
        held.setdefault("validation_fraction", VALIDATION_FRACTION)
    trained = int(data.rows["train"] * (1 - held.get("validation_fraction", 0.0)))
    usual = {
        "model": MODEL,
        "batch_size": usual_batch(trained, by_rows=bool(own)),
        "base_batch_size": own.get("base_batch_size", RunSettings.base_batch_size),
        "mlp": own.get("mlp", RunSettings.mlp),
    }
    rates = dict(given.get("overrides", {}))
    if given.get("optimizer", "adam") != "adam":  # not searched: those of `choose`
        known = own.get("overrides", {})
        rates = {n: known[n] for n in ("l2", "initial_accumulator") if n in known} | rates
    settings = RunSettings(**{**usual, **given, **held, "overrides": rates})
    said = {"model": f"model {settings.model}", "batch_size": f"batch {settings.batch_size:,}"}
    return settings, ", ".join(text for name, text in said.items() if name not in given)


def settings_for(
    data: PreparedData | str | Path, *, warm_start: str | Path | None = None, **given: Any
) -> RunSettings:
    """Return the settings of `cowclip train`, whose defaults follow from the data.

    `RunSettings` itself has the paper's rates, rule and epochs. They are also the result for Criteo
    and Avazu, and with a preset.

    Args:
        data: the prepared folder.
        warm_start: a run to go on from: its settings, and one epoch, are the defaults then.
        given: arguments of `RunSettings`; `update` may also be "auto", its default: "exact" if that
            gives the numbers of "dense", else "dense".

    Raises:
        InputError: if the folder is not prepared, or a value is wrong.
    """
    from cowclip_merlin.training.starting.going_on import settings_to_go_on
    from cowclip_merlin.workflows import PreparedData

    folder = data if isinstance(data, PreparedData) else PreparedData.load(data)
    if warm_start is None:
        return choose(folder, given)[0]
    update = {name: given.pop(name) for name in ("update",) if name in given}
    known = vars(settings_to_go_on(warm_start, **given | held_out(folder, given)))
    return choose(folder, known | update, go_on=True)[0]
