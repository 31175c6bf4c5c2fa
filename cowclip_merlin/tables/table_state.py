"""The parts of a growing table, what a snapshot holds of them, and what they report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from cowclip_merlin.errors import InputError
from cowclip_merlin.tables import admission
from cowclip_merlin.tables.admission import AdmissionState
from cowclip_merlin.tables.changes import ChangeLog
from cowclip_merlin.tables.expiry import EVICT_AT, EXPIRE_AT, ExpiryState
from cowclip_merlin.tables.field_rules import TableStatistics
from cowclip_merlin.tables.id_map import NO_FIELD, IdMap
from cowclip_merlin.tables.initial_rows import RowMemory
from cowclip_merlin.tables.layout import ColumnFields
from cowclip_merlin.types import Array

EXPIRED, EVICTED = 0, 1
"""Places in `TableParts.dropped`."""


@dataclass(frozen=True, kw_only=True)
class TableParts:
    """What a growing table is made of.

    Attributes:
        columns: which field the ids of a column belong to.
        id_map: which row an id has.
        admission: which new ids get one.
        expiry: which ids lose it.
        memory: of the embedding tables whose rows these are.
        changes: what changed for each serving copy.
        dropped: EXPIRED: ids dropped by their time to live; EVICTED: by the bound; int64 [2].
    """

    columns: ColumnFields
    id_map: IdMap
    admission: AdmissionState
    expiry: ExpiryState
    memory: tuple[RowMemory, ...]
    changes: list[ChangeLog] = field(default_factory=list)
    dropped: Array = field(default_factory=lambda: np.zeros(2, np.int64))


def state_of(parts: TableParts) -> dict[str, Array]:
    """What a snapshot must hold, by name; most are views."""
    used = parts.id_map.high_water
    state = (
        parts.id_map.state()
        | parts.columns.state()
        | {
            "last_seen": parts.expiry.last_seen[:used],
            "numbers": np.array([parts.id_map.num_fields, *parts.expiry.numbers]),
            "counters": parts.admission.counters,
            "totals": np.array([*parts.admission.totals, *parts.dropped]),
        }
    )
    for i, memory in enumerate(parts.memory):
        state |= {f"table{i}.{name}": x for name, x in memory.used(used).items()}
    for i, log in enumerate(parts.changes):
        state |= {f"changes{i}.{name}": x for name, x in log.state().items()}
    return state


def restore(parts: TableParts, state: Mapping[str, Array]) -> None:
    """Take over a state; the parts must be new.

    Moments and counters that these parts do not have are left out. If no field of the saved table
    had to be counted, the counters begin with 0.

    Raises:
        InputError: the state is of other tables or columns, or has more rows than the capacity.
    """
    parts.columns.refuse_other(state)
    wanted, counted = _shapes(state_of(parts)), state["counters"].size > 0
    if not counted:
        wanted.pop("counters", None)
    saved = {name: shape for name, shape in _shapes(state).items() if name in wanted}
    if saved != wanted:
        raise InputError(f"the saved table has {saved}, this one has {wanted}; make it alike")
    parts.id_map.restore(state)
    used = parts.id_map.high_water
    parts.expiry.last_seen[:used] = state["last_seen"]
    parts.expiry.numbers[:] = state["numbers"][1:]
    if counted and parts.admission.counters.size:
        parts.admission.counters[:] = state["counters"]
    parts.admission.totals[:], parts.dropped[:] = state["totals"][:2], state["totals"][2:]
    for i, memory in enumerate(parts.memory):
        for name, x in memory.used(used).items():
            x[:] = state[f"table{i}.{name}"]
    for i, log in enumerate(parts.changes):
        prefix = f"changes{i}."
        log.restore({k.removeprefix(prefix): x for k, x in state.items() if k.startswith(prefix)})


def with_more_fields(
    state: Mapping[str, Array], num_fields: int, field_of_column: Sequence[int] | None
) -> dict[str, Array]:
    """Return a state with more fields after those that it has: their ids have no rows yet.

    The rows that ids without a row read are 0 in the new fields. They come after those of the other
    fields, so rows of ids move, with all that they hold.

    Args:
        state: of `state_of`, or the part of it that serving copies need.
        num_fields: F, of the new state.
        field_of_column: number of the field of each column, as in `ColumnFields`.
    """
    first = int(state["numbers"][0])
    more, grown = num_fields - first, dict(state)
    for name, x in state.items():
        if name in ("ids", "fields", "last_seen") or name.startswith("table"):
            value = NO_FIELD if name == "fields" else 0
            grown[name] = np.insert(x, [first] * more, value, axis=0)
        elif name.startswith("changes") and name.endswith(".rows"):
            grown[name] = np.where(x < first, x, x + more).astype(x.dtype)
    grown["free"] = state["free"] + np.int32(more)
    grown["numbers"] = state["numbers"].copy()
    grown["numbers"][[0, 1 + EXPIRE_AT, 1 + EVICT_AT]] += more
    return grown | ColumnFields(num_fields, field_of_column and tuple(field_of_column)).state()


def _shapes(state: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
    """What a state must have to be taken over: fields, counters and the length of the rows."""
    shapes = {name: x.shape[1:] for name, x in state.items() if name.startswith("table")}
    if state["counters"].size:
        shapes["counters"] = state["counters"].shape
    return {"fields": (int(state["numbers"][0]),)} | shapes


def statistics_of(parts: TableParts) -> TableStatistics:
    """Rows, memory in bytes, and totals since the start."""
    high_water, owners = parts.id_map.high_water, parts.id_map.owners
    arrays = [x for memory in parts.memory for x in memory.used(high_water).values()]
    arrays += [x[:high_water] for x in (owners.ids, owners.fields, parts.expiry.last_seen)]
    return TableStatistics(
        rows=tuple(owners.per_field.tolist()),
        high_water=high_water,
        row_bytes=sum(x.nbytes for x in arrays),
        index_bytes=parts.id_map.index_bytes,
        filter_bytes=parts.admission.counters.nbytes,
        events=int(parts.admission.totals[admission.EVENTS]),
        refused=int(parts.admission.totals[admission.REFUSED]),
        expired=int(parts.dropped[EXPIRED]),
        evicted=int(parts.dropped[EVICTED]),
    )
