"""What collisions cost: ids of a log hashed into fewer and fewer buckets (Monolith, Figure 7).

Monolith compares a collisionless table with one whose users and movies are hashed to 10^6 buckets
(Liu et al., arXiv 2209.07663, section 4.1). Hashing n ids into m buckets loses a share of the ids
that depends on the load n/m only, so a smaller log can repeat the experiment at equal loads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cowclip_merlin import compat, metrics
from cowclip_merlin.addresses import FilePath
from cowclip_merlin.batch import Ids
from cowclip_merlin.checks import one_of
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.buckets import bucket_ids
from cowclip_merlin.online.events.event_log import EventLog
from cowclip_merlin.online.events.events import Events
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.events.values import MISSING
from cowclip_merlin.online.settings import OnlineSettings
from cowclip_merlin.settings import Settings, option
from cowclip_merlin.tables import FieldRules
from cowclip_merlin.targets import refuse_several
from cowclip_merlin.training.run import set_up_tensorflow
from cowclip_merlin.types import Array

LOADS = (0.0, 0.059, 0.163, 1.0, 4.0)
"""Ids per bucket; 0 for no hashing. 0.059 and 0.163 are those of Monolith's movies and users."""


@dataclass(frozen=True, kw_only=True)
class CollisionSettings(Settings):
    """Settings of the experiment.

    Raises:
        InputError: a value is out of range or given twice.
    """

    loads: tuple[float, ...] = option(
        LOADS, "ids per bucket, for each run; 0 for no hashing", at_least=0, unique=True
    )
    fields: tuple[str, ...] = option(
        (), "names of the columns to hash; empty for all categorical columns", unique=True
    )
    epochs: int = option(10, "passes over the training rows", at_least=1)

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        if not self.loads:
            raise InputError("loads are missing; give numbers from 0 on")


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


if TYPE_CHECKING:
    from cowclip_merlin.online.training.trainer import OnlineTrainer


TEST_FRACTION = 0.2
"""Share of test rows."""

_SPLIT_SEED = 0


def read_events(files: Sequence[str | FilePath], features: LogFeatures) -> Events:
    """Read a whole log into memory.

    Raises:
        InputError: the log is missing, damaged or not sorted by time.
    """
    return Events.concatenate(list(EventLog(files, features)))


def run_collisions(
    events: Events,
    features: LogFeatures,
    settings: OnlineSettings,
    collisions: CollisionSettings,
    seeds: Sequence[int],
) -> Iterator[CollisionEpoch]:
    """Train once for each seed and load, and yield the results of each epoch.

    The rules of the features file for admission and expiry do not apply, since every epoch repeats
    all training rows.

    Args:
        events: the whole log, sorted by time.
        features: its columns.
        settings: of the model; `run.seed` and `run.epochs` do not apply.
        collisions: loads, columns and epochs.
        seeds: of the runs.

    Raises:
        InputError: a column is unknown, the log is too small to be split, or all test rows have
            the same label.
    """
    for seed in seeds:
        for load in collisions.loads:
            yield from _Run(events, features, settings, collisions, load, seed).epochs()


def hash_columns(
    ids: Array, columns: Sequence[int], load: float, *, seed: int
) -> npt.NDArray[np.int64]:
    """Hash the ids of some columns, int64 [n, F]; the other columns stay as they are.

    Args:
        ids: int64 [n, F].
        columns: indexes of the columns to hash.
        load: distinct ids of a column per bucket; 0 for no hashing.
        seed: of the hash.

    >>> hashed = hash_columns(np.array([[7, 7], [8, 8], [9, 9]]), [1], 3.0, seed=0)
    >>> hashed.tolist()
    [[7, 0], [8, 0], [9, 0]]
    """
    hashed = ids.copy()
    for column in columns if load else ():
        distinct = np.unique(ids[:, column])
        buckets = max(1, round(np.count_nonzero(distinct != MISSING) / load))
        hashed[:, column] = bucket_ids(
            np.ascontiguousarray(ids[:, column]), column, buckets, seed=seed
        )
    return hashed


def split_rows(rows: int) -> tuple[Array, Array]:
    """Return the numbers of the training rows and of the test rows, the same for every run.

    Raises:
        InputError: one of them is empty.
    """
    tested = round(rows * TEST_FRACTION)
    if not 0 < tested < rows:
        raise InputError(f"the log has {rows} rows; give more, to split them")
    order = np.random.default_rng(_SPLIT_SEED).permutation(rows)
    return np.sort(order[:-tested]), np.sort(order[-tested:])


def epoch_batches(rows: Array, batch_size: int, seed: int, epoch: int) -> list[Array]:
    """Cut the training rows, shuffled for this epoch, into batches; the last may be smaller."""
    order = np.random.default_rng([seed, epoch]).permutation(rows)
    return [order[first : first + batch_size] for first in range(0, len(order), batch_size)]


class _Run:
    """One training at one load.

    Args:
        events: the whole log.
        features: its columns.
        settings: of the model.
        collisions: of the experiment.
        load: ids per bucket.
        seed: of everything random.
    """

    def __init__(
        self,
        events: Events,
        features: LogFeatures,
        settings: OnlineSettings,
        collisions: CollisionSettings,
        load: float,
        seed: int,
    ) -> None:
        self.load, self.seed, self.collisions = load, seed, collisions
        self.columns = _indexes(features, collisions.fields)
        hashed = hash_columns(events.ids.values, self.columns, load, seed=seed)
        self.events = replace(events, ids=Ids(hashed))
        self.train_rows, self.test_rows = split_rows(len(events))
        test = events.filter(self.test_rows)
        counted = slice(None) if test.weights is None else test.weights > 0
        if len(np.unique(test.labels[counted])) < 2:
            raise InputError("all test rows have one label; an AUC needs both, so use a longer log")
        self.batch_size = settings.run.batch_size
        self.trainer = new_trainer(features, settings, hashed, seed)

    def epochs(self) -> Iterator[CollisionEpoch]:
        """Train, and yield the results of each epoch."""
        test = self.events.filter(self.test_rows)
        for epoch in range(1, self.collisions.epochs + 1):
            steps = [
                self._step(rows)
                for rows in epoch_batches(self.train_rows, self.batch_size, self.seed, epoch)
            ]
            self.trainer.check_loss()
            count, share, factor = np.mean(steps, axis=0).tolist()
            scores = self.trainer.predict(test)
            rows = self.trainer.table.statistics().rows
            yield CollisionEpoch(
                load=self.load,
                seed=self.seed,
                epoch=epoch,
                auc=metrics.roc_auc(test.labels, scores, sample_weight=test.weights),
                log_loss=metrics.log_loss(test.labels, scores, sample_weight=test.weights),
                ids=sum(rows),
                hashed_ids=sum(rows[column] for column in self.columns),
                count=count,
                clipped_share=share,
                mean_clip_factor=factor,
            )

    def _step(self, rows: Array) -> tuple[float, float, float]:
        """Make one step; return occurrences per id, clipped share and mean clip factor."""
        batch = self.events.filter(rows)
        self.trainer.train(batch)
        distinct = sum(len(np.unique(batch.ids.values[:, column])) for column in self.columns)
        optimizer = self.trainer.optimizer
        return (
            len(batch) * len(self.columns) / distinct,
            float(optimizer.clipped_share.numpy()),
            float(optimizer.mean_clip_factor.numpy()),
        )


def new_trainer(
    features: LogFeatures, settings: OnlineSettings, ids: Array, seed: int
) -> OnlineTrainer:
    """Return a trainer whose tables hold these ids, int64 [n, F], all admitted at once."""
    from cowclip_merlin.online.training.trainer import OnlineTrainer

    compat.release_models()
    set_up_tensorflow(seed, "cpu")
    columns = tuple(replace(column, rules=FieldRules()) for column in features.categorical)
    capacity = settings.capacity
    if capacity is None and settings.max_rows is None:
        capacity = sum(len(np.unique(column)) for column in ids.T) + ids.shape[1]
    run = replace(settings.run, seed=seed)
    settings = replace(settings, run=run, capacity=capacity)
    return OnlineTrainer(settings, replace(features, categorical=columns))


def _indexes(features: LogFeatures, fields: Sequence[str]) -> list[int]:
    """Return the indexes of the columns to hash.

    Raises:
        InputError: a column is unknown, has several values per row, or shares a table; or there
            are several labels.
    """
    refuse_several("this experiment", features.targets, "name one in the features file")
    if shared := features.shared:
        raise InputError(
            f"column {min(shared)!r} shares a table, which this experiment does not hash; remove "
            "its `table` from the features file"
        )
    if lists := features.lists:
        raise InputError(
            f"column {min(lists)!r} has several values per row, which this experiment does not "
            "hash; remove it from the features file"
        )
    names = [column.name for column in features.categorical]
    for field in fields:
        one_of("fields", field, names)
    return [names.index(field) for field in fields or names]
