"""Make equal batches for tables of any size."""

from __future__ import annotations

from dataclasses import replace
from math import gcd

import numpy as np

from cowclip_merlin.bench.random_data import criteo_fields, random_rows
from cowclip_merlin.loading import ColumnArrays
from vocabulary_sizes.settings import VocabularySettings

POOL = 32  # batches of the largest size before rows repeat


def draw(settings: VocabularySettings) -> ColumnArrays:
    """Draw rows with power-law ids for the smallest vocabulary."""
    return random_rows(POOL * max(settings.batches), criteo_fields(settings.vocabularies[0]))


def spread(rows: ColumnArrays, fields: dict[str, int]) -> ColumnArrays:
    """Map the ids of the rows one to one to ids spread over larger fields.

    >>> ids = np.arange(4, dtype=np.int32)[:, None]
    >>> spread(ColumnArrays(ids, ids, ids), {"C1": 10}).ids[:, 0].tolist()
    [0, 7, 4, 1]
    """
    mapped = np.empty_like(rows.ids)
    for column, size in enumerate(fields.values()):
        mapped[:, column] = rows.ids[:, column].astype(np.int64) * multiplier(size) % size
    return replace(rows, ids=mapped)


def multiplier(size: int) -> int:
    """Return a number m coprime to the size, so that i * m % size is one to one."""
    # Near the golden ratio, neighbors are spread far apart and evenly.
    number = max(1, round(0.618034 * size))
    while gcd(number, size) > 1:
        number += 1
    return number


def distinct_rows(rows: ColumnArrays, fields: dict[str, int], batch: int) -> float:
    """Return the mean number of table rows that a batch reads."""
    offsets = np.cumsum([0, *fields.values()])[:-1]
    batches = [rows.ids[i * batch : (i + 1) * batch] + offsets for i in range(min(8, POOL))]
    return float(np.mean([len(np.unique(ids)) for ids in batches]))
