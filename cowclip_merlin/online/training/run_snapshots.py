"""The snapshots of a run: whole ones, or parts that all workers write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from cowclip_merlin.addresses import Address, upload_file
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.logs.message_log import Position
from cowclip_merlin.online.new_columns import noted
from cowclip_merlin.online.run_config import CONFIG
from cowclip_merlin.online.training.settings import StreamSettings
from cowclip_merlin.system.folders import lock_folder
from cowclip_merlin.tables import snapshot
from cowclip_merlin.tables.growing_shard import GrowingParts
from cowclip_merlin.tables.snapshot import (
    Snapshot,
    load_part,
    load_snapshot,
    set_aside,
    times,
)
from cowclip_merlin.tables.snapshot_writer import SnapshotWriter
from cowclip_merlin.types import Array, JsonObject
from cowclip_merlin.workers import Workers
from cowclip_merlin.workers.agreement import arrays_of_all, refusing_together

SNAPSHOTS = "snapshots"
TABLE = GrowingParts("trainer.table.")
"""The growing table's arrays in a snapshot."""


class RunSnapshots:
    """Writes the snapshots of a run, and loads the newest one.

    Args:
        folder: of the run.
        settings: of the stream.
        group: this process and the other workers, which all make the same calls; None for one.
        warn: is called with a line for each damaged snapshot.

    Attributes:
        writer: writes them in a thread, or the part of this worker.
    """

    def __init__(
        self,
        folder: Path,
        settings: StreamSettings,
        group: Workers | None,
        warn: Callable[[str], None],
    ) -> None:
        self._folder, self._group, self._warn = folder / SNAPSHOTS, group, warn
        self._config = folder / CONFIG
        self._copies = settings.snapshots and Address(settings.snapshots)
        self._config_is_there = False
        self._keep = settings.keep_snapshots
        self._leads = group is None or group.is_first
        self._place = (0, 1) if group is None else (group.rank, group.size)
        rank, size = self._place
        copy = self.copy if group is None else None
        self.writer = SnapshotWriter(
            self._folder, keep=self._keep, rank=rank, workers=size, copy=copy
        )

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
        if not self._leads:  # the others have only rows of their own
            arrays, extra = {k: x for k, x in arrays.items() if TABLE.has(k)}, {}
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

    def load_newest(self) -> Snapshot | None:
        """Load the newest snapshot that is not damaged; set those aside that are.

        Returns:
            The snapshot, with the rows of this worker; None if there is none.

        Raises:
            InputError: all are damaged.
        """
        own = np.array(self.numbers(), np.int64)
        known = arrays_of_all(self._group, own)[0].tolist()  # another may see a list of before
        if not known:
            return None

        def damaged(other: int, error: InputError) -> None:
            self._warn(f"{error}; going on from snapshot {other}")

        found = snapshot.load_newest(known, self._load, damaged)
        if self._leads:
            snapshot.go_on_from(self._folder, found.number)
        return found

    def _load(self, number: int) -> Snapshot:
        rank, size = self._place
        with refusing_together(self._group):
            return load_part(self._folder, number, TABLE, rank=rank, size=size)


def roll_back(run: str | Path, snapshot: int) -> list[int]:
    """Go back to a snapshot of a stopped run: the next start goes on from it.

    The newer snapshots stay as `RUN/snapshots/rolled-back-NUMBER`. The next start trains the events
    after the snapshot again, or leaves them out with `on_restart="skip"`.

    Args:
        run: folder of `train_stream`.
        snapshot: its number, the events that it contains.

    Returns:
        The numbers of the newer snapshots.

    Raises:
        InputError: the run has no such snapshot, it is damaged, or a process trains there.
    """
    known, folder = snapshot_times(run), Path(run) / SNAPSHOTS
    with lock_folder(Path(run), "a process trains there; stop it first"):
        if snapshot not in known:
            raise InputError(f"{folder}: no snapshot {snapshot}, only {', '.join(map(str, known))}")
        load_snapshot(folder, snapshot)  # refuses a damaged one
        newer = [number for number in known if number > snapshot]
        for number in reversed(newer):  # a kill leaves the newest ones that were not reached
            set_aside(folder, number, "rolled-back")
    return newer


def snapshot_times(run: str | Path) -> dict[int, float]:
    """Return the complete snapshots of a run, in order: number -> seconds since 1970.

    Raises:
        InputError: there is none.
    """
    if not (known := times(Path(run) / SNAPSHOTS)):
        raise InputError(f"{run}: no snapshots; give the folder that cowclip online train wrote")
    return known
