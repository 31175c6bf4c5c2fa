"""Go on from an earlier run: with its settings, for one epoch, and better than before or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cowclip_merlin.addresses import FilePath
from cowclip_merlin.training.run_config import RunConfig, local_run
from cowclip_merlin.training.run_logs import Metrics
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.training.stopping.best_epoch import kept_row, score_of

_OF_ONE_RUN: Mapping[str, Any] = {
    "epochs": 1,
    "validation_fraction": 0.0,
    "validation_split": "random",
    "early_stopping": None,
    "pretrained_embeddings": None,
}
"""Settings that a run does not pass on."""


def settings_to_go_on(run: str | FilePath, **given: Any) -> RunSettings:
    """Return the settings of a run, for one epoch on more rows.

    Validation, early stopping and given embeddings are not among them.

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
    split = config.settings.scored_split
    before, after = (score_of(x, split) for x in (config.before, kept_row(rows, config.settings)))
    return after.value < before.value if after.is_auc else after.value > before.value


def comparison(config: RunConfig, rows: Sequence[Metrics]) -> str:
    """Say how the rows were scored before and after.

    Args:
        config: of a run that went on from another one.
        rows: its metrics.
    """
    split = config.settings.scored_split
    before, after = (score_of(x, split) for x in (config.before, kept_row(rows, config.settings)))
    words = (
        f"went on from {config.start}, which scored these {split} rows {before.name} "
        f"{before.value:.5f}; now {after.value:.5f}"
    )
    return f"{words}: it became worse" if became_worse(config, rows) else words
