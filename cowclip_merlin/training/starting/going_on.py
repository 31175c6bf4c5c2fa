"""Go on from an earlier run: with its settings, for one epoch, and better than before or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cowclip_merlin.addresses import FilePath
from cowclip_merlin.training.run_config import RunConfig, local_run
from cowclip_merlin.training.run_logs import Metrics
from cowclip_merlin.training.run_settings import SCHEDULE, RunSettings
from cowclip_merlin.training.stopping.early_stopping import Score, kept_row, score_of

_OF_ONE_RUN: Mapping[str, Any] = {
    "epochs": 1,
    "reset_embeddings": False,
    "validation_fraction": 0.0,
    "validation_split": "random",
    "early_stopping": None,
    "evaluate_every": None,
    "monitor": "auc",
    **{name: getattr(RunSettings, name) for name in SCHEDULE},
    "pretrained_embeddings": None,
}
"""Settings that a run does not pass on."""


def settings_to_go_on(run: str | FilePath, **given: Any) -> RunSettings:
    """Return the settings of a run, for one epoch on more rows.

    Validation, early stopping, rates that fall, given and reset embeddings are not among them.

    Args:
        run: the run folder.
        given: arguments of `RunSettings` that replace those of the run; `overrides` one by one.

    Raises:
        InputError: if the folder is not a run, or a value is wrong.
    """
    before = RunConfig.load(local_run(run)).settings
    overrides = dict(before.overrides) | dict(given.get("overrides", {}))
    return RunSettings(**{**vars(before), **_OF_ONE_RUN, **given, "overrides": overrides})


def became_worse(config: RunConfig, rows: Sequence[Metrics]) -> bool:
    """Whether a run scores its rows worse than the run that it went on from."""
    before, after = _scores(config, rows)
    return after.goodness < before.goodness


def _scores(config: RunConfig, rows: Sequence[Metrics]) -> tuple[Score, Score]:
    """Return the scores of the rows before the first step, and with the weights that are kept."""
    settings = config.settings
    each = (config.before, kept_row(rows, settings))
    before, after = (score_of(x, settings.scored_split, settings.monitor) for x in each)
    return before, after


def comparison(config: RunConfig, rows: Sequence[Metrics]) -> str:
    """Say how the rows were scored before and after.

    Args:
        config: of a run that went on from another one.
        rows: its metrics.
    """
    before, after = _scores(config, rows)
    words = (
        f"went on from {config.start}, which scored these {config.settings.scored_split} rows "
        f"{before.name} {before.value:.5f}; now {after.value:.5f}"
    )
    return f"{words}: it became worse" if became_worse(config, rows) else words
