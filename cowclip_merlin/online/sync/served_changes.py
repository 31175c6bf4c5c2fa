"""The changes of a table that servers have to get."""

from __future__ import annotations

from typing import NamedTuple

from cowclip_merlin.tables import GrowingTable
from cowclip_merlin.tables.serving_table import Changes
from cowclip_merlin.types import Array

MOST_GONE = 1 << 22
"""Ids without a row to remember while servers cannot be told: 64 MiB. Beyond it servers load a
snapshot."""


class ChangedRows(NamedTuple):
    """Changes, and the changed rows of each embedding table, float32 [n, d]."""

    changes: Changes
    values: list[Array]


class TableChanges:
    """The changes of a table of this process.

    Args:
        table: its state may be restored after this.
        bounded: whether it remembers at most `MOST_GONE` ids without a row.

    Attributes:
        breaks_of_others: `own_breaks` of the other workers, as far as they have told.
    """

    def __init__(self, table: GrowingTable, *, bounded: bool = True) -> None:
        self._table, self._log = table, table.track_changes(MOST_GONE if bounded else None)
        self.breaks_of_others = 0
        self._since: dict[int, list[Changes]] = {}  # by snapshots that servers do not know

    @property
    def breaks(self) -> int:
        """How often ids were forgotten that are gone: only a later snapshot is complete."""
        return self.own_breaks + self.breaks_of_others

    @property
    def own_breaks(self) -> int:
        """How often ids of this process's table were forgotten."""
        return self._log.breaks

    def collect(self) -> ChangedRows:
        """Return all that has changed since what has arrived; no step may run meanwhile."""
        changes = self._log.collect()
        for since in self._since.values():
            since.append(changes)
        return ChangedRows(changes, [memory.w[changes.rows] for memory in self._table.memory])

    def arrived(self) -> None:
        """Forget what `collect` returned last: servers can read it."""
        self._log.clear()

    def snapshot_begins(self, snapshot: int) -> None:
        """Remember what changes from now on, until servers know this snapshot."""
        if self._log.is_broken:
            self._log.begin_again()
        self._since[snapshot] = []

    def snapshot_ends(self, snapshot: int) -> None:
        """Return with the next `collect` what has changed since this snapshot began, too."""
        for changes in self._since.pop(snapshot, []):
            self._log.add_rows(changes.rows)
            self._log.add_gone(changes.gone)
        self._since = {number: x for number, x in self._since.items() if number > snapshot}

    def snapshot_failed(self, snapshot: int) -> None:
        """Forget a snapshot that servers will not know."""
        self._since.pop(snapshot, None)

    def close(self) -> None:
        """Remember changes no longer."""
        self._table.stop_tracking(self._log)
