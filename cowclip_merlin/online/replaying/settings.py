"""Settings of a replay."""

from __future__ import annotations

from dataclasses import dataclass

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.values import parse_duration
from cowclip_merlin.settings import Settings, option

NEVER = "never"


@dataclass(frozen=True, kw_only=True)
class ReplaySettings(Settings):
    """Settings of a replay.

    Raises:
        InputError: a value is out of range.

    >>> ReplaySettings(batch_days=5, sync=("never", "1d", "30min")).intervals
    (None, 86400, 1800)
    """

    batch_days: float = option(
        help="days to train before the first event is scored", metavar="D", at_least=0
    )
    sync: tuple[str, ...] = option(
        help="event time between two syncs of each serving copy, such as never,1d,5h,30min",
        metavar="TIMES",
        unique=True,
    )
    snapshot_every: float = option(
        60.0, "seconds between snapshots, for --resume; 0: only at the end", metavar="S", at_least=0
    )

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        if not self.sync:
            raise InputError("sync is empty; give at least one interval, such as 1h or never")
        _ = self.intervals

    @property
    def intervals(self) -> tuple[int | None, ...]:
        """Seconds between two syncs of each copy; None for never."""
        return tuple(None if s == NEVER else parse_duration(s, "sync") for s in self.sync)
