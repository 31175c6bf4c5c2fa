"""Settings of `cowclip experiment` and `cowclip sweep` from the command line."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from cowclip_merlin.addresses import FilePath, expand
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.settings import OnlineSettings
from cowclip_merlin.settings import Settings, device_option, option, option_of
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.workflows.prepare_settings import PrepareSettings


def parse_fraction(text: str) -> float:
    """Parse a fraction like 1/64 or 0.5.

    Raises:
        InputError: if the text is anything else.

    >>> parse_fraction("1/64")
    0.015625
    """
    try:
        return float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        raise InputError(f"--scale {text!r} is not a fraction; give one like 1/64 or 0.5") from None


def _labels(text: str) -> tuple[str, ...]:
    """Split labels.

    >>> _labels("no scaling; CowClip")
    ('no scaling', 'CowClip')
    """
    return tuple(filter(None, map(str.strip, text.split(";"))))


@dataclass(frozen=True, kw_only=True)
class DataSettings(Settings):
    """Settings that all experiments of a session on prepared data share.

    Tables show all lines, whichever of them run. `sizing_for` has the defaults of `max_multiplier`
    and `steps`.

    Raises:
        InputError: if a value is unknown or out of range.
    """

    data: FilePath = option(help="folder that cowclip prepare wrote", metavar="DATA")
    out: Path = option(help="results folder", metavar="RESULTS")
    name: str | None = option(None, "name of the data set in the tables", metavar="TEXT")
    scale: float = option(
        1.0,
        "fraction of the rows, like 1/64",
        metavar="S",
        convert=parse_fraction,
        above=0,
        at_most=1,
    )
    seeds: int = option(3, "runs of each cell", at_least=1)
    epochs: int | None = option(None, "passes over the rows", shown="10", at_least=1)
    update: str = option_of(RunSettings, "update", default="exact", help="{choices}")
    max_multiplier: int | None = option(
        None, "largest batch / base batch", shown="32; 128 from 20.6M rows", at_least=1
    )
    steps: int | None = option(
        None,
        "minimum steps per epoch at the largest batch, below 20.6M rows",
        shown="50",
        at_least=1,
    )
    device: str = device_option()
    mlp: tuple[int, ...] = option_of(RunSettings, "mlp")
    multi_task: str = option_of(
        RunSettings, "multi_task", help="several labels: as cowclip train; the first one decides"
    )
    experts: int = option_of(RunSettings, "experts")
    lines: tuple[str, ...] = option(
        (), "run only these lines of the table: a;b", shown="all", metavar="LABELS", convert=_labels
    )

    @property
    def layers(self) -> dict[str, Any]:
        """The attributes of `RunSettings` that all runs share: the layers of the models."""
        return {name: getattr(self, name) for name in ("mlp", "multi_task", "experts")}

    @property
    def multi_task_words(self) -> str:
        """Name the layers between embeddings and labels; empty for the usual ones."""
        if self.multi_task == "shared_bottom":
            return ""
        of = f" of {self.experts} experts" if self.multi_task == "mmoe" else ""
        return f", {self.multi_task}{of}"


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
    name: str | None = option_of(DataSettings, "name")
    seeds: int = option_of(DataSettings, "seeds")
    batch_days: float = option(
        5.0, "days to train before the first event is scored", metavar="D", at_least=0
    )
    max_bad_fraction: float = option_of(
        PrepareSettings,
        "max_bad_fraction",
        help="largest share of damaged rows; above it, reading stops",
    )

    def __post_init__(self) -> None:
        """Reject values that would fail later."""
        super().__post_init__()
        object.__setattr__(self, "files", tuple(expand(self.files)))
        for path in self.files:
            if not path.is_file():
                raise InputError(f"{path}: no such file; check the path")
