"""Settings of experiments on a log from the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cowclip_merlin.addresses import FilePath, expand
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.settings import OnlineSettings
from cowclip_merlin.settings import Settings, option


@dataclass(frozen=True, kw_only=True)
class LogSettings(Settings):
    """Settings that all experiments of a session on a log share.

    Raises:
        InputError: a value is out of range, or a file does not exist.
    """

    files: tuple[FilePath, ...] = option(
        help="CSV, TSV (also compressed) or parquet, by time",
        flag="--log",
        nargs="+",
        metavar="LOG",
    )
    features: FilePath = option(help="features file of the log", metavar="YAML")
    out: Path = option(help="results folder", metavar="RESULTS")
    model: OnlineSettings = option(help="the model and its training; each run has its own seed")
    name: str | None = option(None, "name of the data set in the tables", metavar="TEXT")
    seeds: int = option(3, "runs of each cell", at_least=1)
    batch_days: float = option(
        5.0, "days to train before the first event is scored", metavar="D", at_least=0
    )
    max_bad_fraction: float = option(
        0.001,
        "largest share of damaged rows; above it, reading stops",
        metavar="F",
        at_least=0,
        below=1,
    )
    options: tuple[str, ...] = option(
        (), "words of the command line that were given, for the command that repeats this"
    )

    def __post_init__(self) -> None:
        """Reject values that would fail later."""
        super().__post_init__()
        object.__setattr__(self, "files", tuple(expand(self.files)))
        for path in self.files:
            if not path.is_file():
                raise InputError(f"{path}: no such file; check the path")
