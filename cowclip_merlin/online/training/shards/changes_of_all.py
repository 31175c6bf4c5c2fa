"""The changes of all workers' rows, for the servers that follow worker 0."""

from __future__ import annotations

import numpy as np

from cowclip_merlin.online.sync.served_changes import ChangedRows, TableChanges
from cowclip_merlin.online.training.shards.turns import ARRIVED, COLLECT, KNOWN, Conductor, Turn
from cowclip_merlin.tables.expiry import Dropped
from cowclip_merlin.tables.serving_table import Changes
from cowclip_merlin.types import Array
from cowclip_merlin.workers import Workers
from cowclip_merlin.workers.agreement import arrays_of_all


class ChangesOfAll:
    """What has changed on all workers, on worker 0; a `ServedChanges`.

    Args:
        conductor: tells the others to collect and to forget their changes.
        own: of worker 0.
        num_fields: F; the rows below it are on all workers.
    """

    def __init__(self, conductor: Conductor, own: TableChanges, num_fields: int) -> None:
        self._conductor, self._own, self._num_fields = conductor, own, num_fields

    @property
    def breaks(self) -> int:
        """How often ids were forgotten that are gone, on all workers, as far as they have told."""
        return self._own.breaks + sum(each.breaks for each in self._conductor.others)

    def collect(self) -> ChangedRows:
        """Return all that has changed since what has arrived; no step may run meanwhile."""
        self._conductor.say(Turn(COLLECT))
        return gather_changes(self._conductor.group, self._own.collect(), self._num_fields)

    def arrived(self) -> None:
        """Forget what `collect` returned last: servers can read it."""
        self._conductor.say(Turn(ARRIVED))
        self._own.arrived()

    def snapshot_begins(self, snapshot: int) -> None:
        """Remember what changes from now on; the others do so as they save."""
        self._own.snapshot_begins(snapshot)

    def snapshot_ends(self, snapshot: int) -> None:
        """Return with the next `collect` what has changed since this snapshot began, too."""
        self._conductor.say(Turn(KNOWN, snapshot))
        self._own.snapshot_ends(snapshot)

    def snapshot_failed(self, snapshot: int) -> None:
        """Forget a snapshot that servers will not know; the others do so with the next one."""
        self._own.snapshot_failed(snapshot)

    def close(self) -> None:
        """Remember changes no longer."""
        self._own.close()


def gather_changes(group: Workers, own: ChangedRows, num_fields: int) -> ChangedRows:
    """Join the changes of all workers; each of them must call this.

    Args:
        group: this process and the others.
        own: of this worker.
        num_fields: F; the rows below it are on all workers, with equal values.

    Returns:
        The changes. The numbers of rows are their places, but those below F are as they were.
    """
    changes, values = own
    widths = [x.shape[1] for x in values]
    columns = [
        changes.rows.astype(np.int64)[:, None],
        changes.fields[:, None],
        changes.ids[:, None],
    ]
    packed = np.concatenate([*columns, _bits(np.concatenate(values, axis=1))], axis=1)
    gone = np.stack([changes.gone.fields, changes.gone.ids], axis=1)
    every = [_of_all(group, x) for x in (packed, gone)]
    rows, order = _numbered(every[0][:, 0], num_fields)
    packed = every[0][order]
    floats = packed[:, 3:].copy().view(np.float32)[:, : sum(widths)]
    values = [np.ascontiguousarray(x) for x in np.split(floats, np.cumsum(widths)[:-1], axis=1)]
    gone = Dropped(*np.ascontiguousarray(every[1].T))
    return ChangedRows(Changes(rows, packed[:, 1].copy(), packed[:, 2].copy(), gone), values)


def _of_all(group: Workers, own: Array) -> Array:
    """Return the lines of all workers, int64 [n, k]."""
    parts = arrays_of_all(group, np.ascontiguousarray(own).reshape(-1))
    return np.concatenate(parts).reshape(-1, own.shape[1])


def _numbered(rows: Array, num_fields: int) -> tuple[Array, Array]:
    """Number the rows of all workers; return the numbers, and which lines have them.

    A row below F occurs once, and comes before the others.
    """
    shared, first = np.unique(rows, return_index=True)
    first = first[shared < num_fields]
    others = np.flatnonzero(rows >= num_fields)
    numbers = np.concatenate([rows[first], num_fields + np.arange(len(others))])
    return numbers.astype(np.int32), np.concatenate([first, others])


def _bits(values: Array) -> Array:
    """Return float32 [n, d] as int64 [n, ceil(d / 2)]."""
    padded = np.pad(values, [(0, 0), (0, values.shape[1] % 2)])
    return np.ascontiguousarray(padded).view(np.int64)
