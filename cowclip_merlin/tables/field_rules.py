"""When the ids of a field get and lose their rows, and what a growing table reports."""

from __future__ import annotations

from dataclasses import dataclass

MOST_ADMIT = 255
"""Largest threshold of admission: a counter is one byte."""

LATEST = 2**32 - 1
"""Last time that can be, 2106-02-07, since tables keep 32 bits of it; also the longest `ttl`."""


@dataclass(frozen=True, kw_only=True)
class FieldRules:
    """When the ids of a field get and lose their rows.

    Attributes:
        admit: occurrences after which an id gets a row, 1 to 255.
        ttl: seconds of event time without an occurrence after which it goes; 0 for never.
        min_rows: ids of this field that stay when `max_rows` drops the oldest.
    """

    admit: int = 1
    ttl: int = 0
    min_rows: int = 0


@dataclass(frozen=True, kw_only=True)
class TableStatistics:
    """What a growing table holds, and what it did since the start.

    Attributes:
        rows: ids that have a row, of each field.
        high_water: rows that were ever used, the reserved ones with them.
        row_bytes: memory of the used rows: weights, optimizer state, id, field and time.
        index_bytes: memory of the hash table.
        filter_bytes: memory of the counters.
        events: events seen.
        refused: occurrences of ids that were not admitted.
        expired: ids dropped by their time to live.
        evicted: ids dropped by the bound on rows.
    """

    rows: tuple[int, ...]
    high_water: int
    row_bytes: int
    index_bytes: int
    filter_bytes: int
    events: int
    refused: int
    expired: int
    evicted: int
