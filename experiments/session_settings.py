"""Settings of `cowclip experiment` and `cowclip sweep` from the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.planning.planned_run import DataVariant


@dataclass(frozen=True, kw_only=True)
class SessionSettings:
    """Settings from the command line that all experiments of a session share.

    Attributes:
        data: prepared folder.
        out: results folder.
        name: name of the data set for readers; None: the folder's name.
        scale: share of the rows to use.
        seeds: runs of each cell.
        epochs: number of epochs; None: the paper's 10.
        update: default for lines without an update.
        max_multiplier: multiplier of the largest batch; None: as in `sizing_for`.
        steps: minimum steps per epoch at the largest batch, at reduced size; None: as in
            `sizing_for`.
        device: "auto", "cpu" or "gpu".
        mlp: widths of the hidden layers.
        lines: labels of the lines to run; empty: all. Tables show all of them.

    Raises:
        InputError: if a value is out of range.
    """

    data: Path
    out: Path
    name: str | None = None
    scale: float = 1.0
    seeds: int = 3
    epochs: int | None = None
    update: str = "exact"
    max_multiplier: int | None = None
    steps: int | None = None
    device: str = "auto"
    mlp: tuple[int, ...] = (400, 400, 400)
    lines: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Reject values that would fail later."""
        for name in ("seeds", "max_multiplier", "steps", "epochs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"--{name.replace('_', '-')} is {value}; it must be at least 1")
        DataVariant(fraction=self.scale)
