"""Settings of the training on a stream."""

from __future__ import annotations

from dataclasses import dataclass

from cowclip_merlin.addresses import is_address
from cowclip_merlin.errors import InputError
from cowclip_merlin.settings import Settings, option

MOST_KEYS = 2_000_000_000
"""Keys of events that can be known."""


@dataclass(frozen=True, kw_only=True)
class StreamSettings(Settings):
    """When a training on a stream cuts batches, syncs servers and writes snapshots.

    Raises:
        InputError: a value is out of range.
    """

    max_wait: float = option(
        1.0,
        "seconds after which a smaller batch is trained; 0: wait until it is full",
        metavar="S",
        at_least=0,
    )
    sync_every: float = option(
        10.0, "seconds between two syncs of the servers' rows", metavar="S", at_least=0
    )
    dense_every: float = option(
        60.0, "seconds between two syncs of the dense weights", metavar="S", at_least=0
    )
    snapshot_every: float = option(
        600.0, "seconds between two snapshots; 0: only at the end", metavar="S", at_least=0
    )
    keep_snapshots: int = option(
        2, "newest snapshots to keep, to go on from or back to", metavar="N", at_least=2
    )
    snapshots: str | None = option(
        None,
        "address such as s3://bucket/run: copy the snapshots and their settings there, from where "
        "servers load them",
        metavar="ADDRESS",
    )
    catch_up: int = option(
        1,
        "largest batch, in multiples of --batch-size, while that many events wait; 1: never larger",
        metavar="K",
        at_least=1,
        at_most=128,
    )
    repeats_window: int = option(
        86400,
        "seconds of event time for which an event with a known key is dropped; 0: never",
        metavar="S",
        at_least=0,
    )
    repeats_keys: int = option(
        1 << 23,
        "keys that are known at most, of about 50 bytes; the oldest are forgotten first, also "
        "within --repeats-window",
        metavar="N",
        at_least=1,
        at_most=MOST_KEYS,
    )
    on_restart: str = option(
        "replay",
        "after a restart, train again what came after the snapshot (replay), or continue with the "
        "newest event (skip)",
        choices=("replay", "skip"),
    )
    trim: bool = option(
        False,
        "delete events from the log once all kept snapshots contain them; only if nothing else "
        "reads the log",
    )
    until_end: bool = option(False, "stop at the end of the log")

    def __post_init__(self) -> None:
        """Refuse a path where an address has to be.

        Raises:
            InputError: a value is wrong.
        """
        super().__post_init__()
        if self.snapshots is not None and not is_address(self.snapshots):
            raise InputError(
                f"`snapshots` is {self.snapshots!r}; give an address such as s3://bucket/run"
            )
