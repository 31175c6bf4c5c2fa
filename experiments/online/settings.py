"""Settings of experiments on a log from the command line."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.settings import OnlineSettings


@dataclass(frozen=True, kw_only=True)
class LogSettings:
    """Settings that all experiments of a session on a log share.

    Attributes:
        files: the log, sorted by time: text, .gz or parquet.
        features: its features file.
        out: results folder.
        model: settings of the model and its training; each run has a seed of its own.
        name: name of the log for readers; None: the name of its first file.
        seeds: runs of each line, with seeds 1 to `seeds`.
        batch_days: days to train before the first event is scored.
        max_bad_fraction: share of damaged rows above which a run stops.
        options: words of the command line that were given, for the command that repeats this.

    Raises:
        InputError: a value is out of range, or a file does not exist.
    """

    files: tuple[Path, ...]
    features: Path
    out: Path
    model: OnlineSettings
    name: str | None = None
    seeds: int = 3
    batch_days: float = 5.0
    max_bad_fraction: float = 0.001
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Reject values that would fail later."""
        if self.seeds < 1:
            raise InputError(f"`seeds` is {self.seeds}; it must be at least 1")
        if not 0 <= self.batch_days < math.inf:
            raise InputError(f"`batch_days` is {self.batch_days}; give a number from 0 on")
        for path in self.files:
            if not path.is_file():
                raise InputError(f"{path}: no such file; check the path")
