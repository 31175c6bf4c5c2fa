"""Settings of the training on a stream."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cowclip_merlin.checks import one_of
from cowclip_merlin.errors import InputError

ON_RESTART = ("replay", "skip")


@dataclass(frozen=True, kw_only=True)
class StreamSettings:
    """When a training on a stream cuts batches, syncs servers and writes snapshots.

    Attributes:
        max_wait: seconds after which a batch is trained although it is not full; 0 for never.
        sync_every: seconds between two syncs of the servers' rows.
        dense_every: seconds between two syncs of the dense weights, which go with the rows.
        snapshot_every: seconds between two snapshots; 0 for one at the end only.
        catch_up: times the batch size to train at once as long as so many events wait; 1 for none.
        on_restart: "replay" goes on where the snapshot was taken; "skip" goes on with the newest
            event, as Monolith does.
        repeats_window: seconds of event time for which an event with a known key is dropped; 0
            keeps all events. It needs a key in the features file.
        until_end: stop at the end of the log.
        trim: remove the events from the log that all kept snapshots hold.

    Raises:
        InputError: a value is out of range.
    """

    max_wait: float = 1.0
    sync_every: float = 10.0
    dense_every: float = 60.0
    snapshot_every: float = 600.0
    catch_up: int = 1
    on_restart: str = "replay"
    repeats_window: int = 86400
    until_end: bool = False
    trim: bool = False

    def __post_init__(self) -> None:
        """Check the values."""
        one_of("on_restart", self.on_restart, ON_RESTART)
        for name in ("max_wait", "sync_every", "dense_every", "snapshot_every", "repeats_window"):
            value = getattr(self, name)
            if not (0 <= value < math.inf):
                raise InputError(f"{name} is {value}; give a number from 0 on")
        if not 1 <= self.catch_up <= 128:
            raise InputError(f"catch_up is {self.catch_up}; give a whole number from 1 to 128")
