"""Settings and results of the experiment with collisions."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cowclip_merlin.checks import check_unique
from cowclip_merlin.errors import InputError

LOADS = (0.0, 0.059, 0.163, 1.0, 4.0)
"""Ids per bucket; 0 for no hashing. 0.059 and 0.163 are those of Monolith's movies and users."""


@dataclass(frozen=True, kw_only=True)
class CollisionSettings:
    """Settings of the experiment.

    Attributes:
        loads: ids per bucket, for each run; 0 for no hashing.
        fields: names of the columns to hash; empty for all categorical columns.
        epochs: passes over the training rows.

    Raises:
        InputError: a value is out of range.
    """

    loads: tuple[float, ...] = LOADS
    fields: tuple[str, ...] = ()
    epochs: int = 10

    def __post_init__(self) -> None:
        """Check the values."""
        check_unique({"loads": self.loads, "fields": self.fields})
        if not self.loads or not all(0 <= load < math.inf for load in self.loads):
            raise InputError(f"loads are {self.loads}; give numbers from 0 on")
        if self.epochs < 1:
            raise InputError(f"epochs is {self.epochs}; it must be at least 1")


@dataclass(frozen=True, kw_only=True)
class CollisionEpoch:
    """One epoch of one run. Counts and the clip are means over the steps of the epoch.

    Attributes:
        load: ids per bucket; 0 for no hashing.
        seed: of initial values, row order and hash.
        epoch: from 1.
        auc: on the test rows, after the epoch.
        log_loss: on the test rows, after the epoch.
        ids: ids in the table, of all columns.
        hashed_ids: those of the columns that are hashed at other loads.
        count: occurrences in a batch of each id there, over the hashed columns.
        clipped_share: share of the batch's rows that were clipped, over all columns.
        mean_clip_factor: mean clip factor of the batch's rows, over all columns.
    """

    load: float
    seed: int
    epoch: int
    auc: float
    log_loss: float
    ids: int
    hashed_ids: int
    count: float
    clipped_share: float
    mean_clip_factor: float
