"""A growing table as a dict: slow and obvious; and small tables to compare with it.

Which rows the oldest are is for the test to say: `drop` takes the ids that the table dropped, and
refuses those that had to stay.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from cowclip_merlin.batch import Ids
from cowclip_merlin.tables import FieldRules, GrowingTable
from cowclip_merlin.tables.initial_rows import RowMemory

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def seeded_hash(seed, f, number):
    return mix(mix((seed + (f + 1) * GOLDEN) & MASK) ^ (number & MASK))


def uniform(bits):
    return ((bits >> 11) + 1) / 2**53


def first_values(seed, f, id_, d, std):
    """The row of a new id: float64 [d]."""
    state, row = seeded_hash(seed, f, id_), []
    while len(row) < d:
        state = (state + GOLDEN) & MASK
        radius = std * math.sqrt(-2 * math.log(uniform(mix(state))))
        state = (state + GOLDEN) & MASK
        angle = 2 * math.pi * uniform(mix(state))
        row += [radius * math.cos(angle), radius * math.sin(angle)]
    return row[:d]


def keys_of(event):
    """Field and id of every occurrence; a field of an event has one id or a list of ids."""
    lists = ((f, ids if isinstance(ids, list) else [ids]) for f, ids in enumerate(event))
    return [(f, id_) for f, ids in lists for id_ in ids]


@dataclass
class Entry:
    """An id with a row: when it was last seen, and how many steps trained it."""

    seen: int
    steps: int = 0


@dataclass
class Reference:
    admit_after: tuple[int, ...]
    ttl: tuple[int, ...]
    window: int = 0
    kind: str = "count"
    seed: int = 0
    ids: dict = field(default_factory=dict)  # (field, id) -> Entry
    counts: dict = field(default_factory=dict)  # (field, id) -> occurrences without a row
    clock: int = 0
    events: int = 0
    refused: int = 0
    changed: set = field(default_factory=set)
    gone: set = field(default_factory=set)

    def _admits(self, key):
        threshold = self.admit_after[key[0]]
        if threshold <= 1:
            return True
        if self.kind == "count":
            self.counts[key] = min(self.counts.get(key, 0) + 1, 255)
            admitted = self.counts[key] >= threshold
        else:
            start = mix((key[1] + (key[0] + 1) * GOLDEN) & MASK)
            bits = seeded_hash(self.seed ^ start, key[0], self.events)
            admitted = uniform(bits) > 0.05 ** (1 / threshold)
        self.refused += not admitted
        return admitted

    def new_in(self, batch):
        """Count a batch; the new ids of it, in order."""
        new = {}
        for ids in batch:
            for key in keys_of(ids):
                if key not in self.ids and key not in new and self._admits(key):
                    new[key] = Entry(0)
            self.events += 1
            if self.window and self.events % self.window == 0:
                self.counts = {key: count // 2 for key, count in self.counts.items()}
        return new

    def admit(self, batch, times, new):
        """Train on a batch; `new` is what `new_in` gave."""
        self.ids |= new
        present = set()
        for ids, now in zip(batch, times):
            for key in keys_of(ids):
                if key in self.ids:
                    self.ids[key].seen = max(self.ids[key].seen, now)
                    present.add(key)
        for key in present:
            self.ids[key].steps += 1
        self.changed |= present
        self.gone -= present
        self.clock = max([self.clock, *times])

    def overdue(self):
        return {
            (f, i)
            for (f, i), entry in self.ids.items()
            if self.ttl[f] and self.clock - entry.seen >= self.ttl[f]
        }

    def drop(self, keys):
        for key in keys:
            del self.ids[key]
        self.gone |= set(keys)
        self.changed -= set(keys)

    def oldest(self, keep, wanted, share=0.01):
        """Ids that may go to make room: as old as the oldest `wanted` or 1%, and not in `keep`."""
        number = max(wanted, math.ceil(share * len(self.ids)))
        seen = sorted(e.seen for key, e in self.ids.items() if key not in keep)
        cutoff = seen[min(number, len(seen)) - 1]
        return {k for k, e in self.ids.items() if k not in keep and e.seen <= cutoff}


def row_memory(capacity, d=2, seed=1, std=1.0):
    """Memory that was used before: not zero, as TensorFlow hands it out."""
    w, m, v = (np.full((capacity, d), 9.0, np.float32) for _ in range(3))
    return RowMemory(w=w, slots={"m": m, "v": v}, std=std, seed=seed)


def grown(rules, capacity, *, d=2, kind=GrowingTable, **options):
    """A growing table with weights and moments of one embedding table."""
    return kind(rules, memory=[row_memory(capacity, d)], capacity=capacity, **options)


def free(fields):
    """Rules that admit every id and keep it."""
    return [FieldRules()] * fields


def column(*ids):
    """Ids of one field, [n, 1]."""
    return np.array(ids, np.int64)[:, None]


def ids_of(events, columns):
    """The ids of events, each a list of ids for each column."""
    lengths = [[len(ids) for ids in event] for event in events]
    values = [id_ for event in events for ids in event for id_ in ids]
    return Ids(np.array(values, np.int64), np.array(lengths, np.int32).reshape(-1, columns))
