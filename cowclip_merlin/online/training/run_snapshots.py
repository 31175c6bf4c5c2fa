"""The snapshots of a run: whole ones, or parts that all workers write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from cowclip_merlin.addresses import Address, upload_file
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.logs.message_log import Position
from cowclip_merlin.online.new_columns import noted
from cowclip_merlin.online.run_config import CONFIG
from cowclip_merlin.online.training.settings import StreamSettings
from cowclip_merlin.online.training.shards.turns import Alone
from cowclip_merlin.tables import snapshot
from cowclip_merlin.tables.growing_shard import GrowingParts
from cowclip_merlin.tables.snapshot import Snapshot, load_part
from cowclip_merlin.tables.snapshot_writer import SnapshotWriter
from cowclip_merlin.types import Array, JsonObject

SNAPSHOTS = "snapshots"
TABLE = GrowingParts("trainer.table.")
"""The growing table's arrays in a snapshot."""


class RunSnapshots:
    """Writes the snapshots of a run, and loads the newest one.

    Args:
        folder: of the run.
        settings: of the stream.
        team: the other workers.
        warn: is called with a line for each damaged snapshot.

    Attributes:
        writer: writes them in a thread.
    """

    def __init__(
        self, folder: Path, settings: StreamSettings, team: Alone, warn: Callable[[str], None]
    ) -> None:
        self._folder, self._team, self._warn = folder / SNAPSHOTS, team, warn
        self._config = folder / CONFIG
        self._copies = settings.snapshots and Address(settings.snapshots)
        self._config_is_there = False
        self._keep = settings.keep_snapshots
        copy = self.copy if team.size == 1 else None
        how = {"keep": self._keep, "workers": team.size, "copy": copy}
        self.writer = SnapshotWriter(self._folder, **how)

    def numbers(self) -> list[int]:
        """Return the numbers of the snapshots on the disk."""
        return snapshot.numbers(self._folder)

    def newest_time(self) -> float | None:
        """Return when the newest one was written, seconds since 1970; None before the first."""
        return max(snapshot.times(self._folder).values(), default=None)

    def begin(
        self,
        number: int,
        arrays: Mapping[str, Array],
        position: Position,
        features: LogFeatures,
    ) -> None:
        """Begin to write a snapshot.

        Args:
            number: events trained.
            arrays: of the state, by name.
            position: after these events.
            features: columns of the trainer.
        """
        extra: JsonObject = {"position": list(position)} | noted(features)
        self.writer.begin(number, arrays, extra)

    def copy(self, number: int) -> None:
        """Copy a snapshot, and at first `config.json`, to the address of the settings, if any.

        Raises:
            InputError: the address cannot be reached; another call tries again.
        """
        if not self._copies:
            return
        if not self._config_is_there:
            upload_file(self._config, str(self._copies / CONFIG))
            self._config_is_there = True
        snapshot.copy_snapshot(self._folder, number, str(self._copies / SNAPSHOTS), keep=self._keep)

    def load_newest(self) -> Snapshot:
        """Load the newest snapshot that is not damaged; set those aside that are.

        Raises:
            InputError: all are damaged.
        """

        def load(number: int) -> Snapshot:
            own = partial(load_part, self._folder, number, TABLE, size=self._team.size)
            return self._team.load(number, own)

        def damaged(number: int, older: int, error: InputError) -> None:
            self._warn(f"{error}; going on from snapshot {older}")
            snapshot.set_aside(self._folder, number, "damaged")

        found = snapshot.load_newest(self._folder, load, damaged)
        snapshot.remove_parts(self._folder, lambda known: known > found.number)
        return found
