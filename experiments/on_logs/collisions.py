"""What collisions cost: ids of a log hashed into fewer and fewer buckets (Monolith, Figure 7).

Monolith compares a collisionless table with one whose users and movies are hashed to 10^6 buckets
(Liu et al., arXiv 2209.07663, section 4.1). If n ids are hashed into m buckets, the share of them
that is lost depends on the load n/m only. So a smaller log can repeat this at equal loads.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cowclip_merlin import compat, metrics
from cowclip_merlin.batch import Ids
from cowclip_merlin.checks import one_of
from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.definitions import CollisionLine, Measure
from cowclip_merlin.experiments.figures import Curve, draw_epochs, write_experiment_figure
from cowclip_merlin.experiments.on_logs.log_runs import LogRuns, LogSession, hash_settings
from cowclip_merlin.experiments.results import append_rows, read_rows
from cowclip_merlin.online.events.buckets import bucket_ids
from cowclip_merlin.online.events.event_log import EventLog
from cowclip_merlin.online.events.events import Events
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.events.values import MISSING
from cowclip_merlin.online.settings import OnlineSettings
from cowclip_merlin.system.folders import COLLISIONS_CSV
from cowclip_merlin.system.machine import versions
from cowclip_merlin.tables import FieldRules
from cowclip_merlin.targets import refuse_several
from cowclip_merlin.training.run import set_up_tensorflow
from cowclip_merlin.types import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from cowclip_merlin.online.training.trainer import OnlineTrainer

TEST_FRACTION = 0.2
"""Share of test rows."""

_SPLIT_SEED = 0


@dataclass(frozen=True, kw_only=True)
class CollisionEpoch:
    """One epoch of one run. Counts and the clip are means over the steps of the epoch."""

    load: float  # ids per bucket; 0 for no hashing
    seed: int  # of initial values, row order and hash
    epoch: int  # from 1
    auc: float  # on the test rows, after the epoch
    log_loss: float
    ids: int  # in the table, of all columns
    hashed_ids: int  # those of the columns that are hashed at other loads
    count: float  # occurrences in a batch of each id there, over the hashed columns
    clipped_share: float  # of the batch's rows, over all columns
    mean_clip_factor: float  # of the batch's rows, over all columns


@dataclass(frozen=True, kw_only=True)
class CollisionResult(CollisionEpoch):
    """One epoch of a run, as a row of `collisions.csv`."""

    config_hash: str  # of the run, equal for runs that train the same
    data: str
    data_fingerprint: str
    seconds: float  # of the whole run
    revision: str
    tensorflow: str


def hash_columns(
    ids: Array, columns: Sequence[int], load: float, *, seed: int
) -> npt.NDArray[np.int64]:
    """Hash the ids of some columns, int64 [n, F]; the other columns stay as they are.

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


def run_collisions(
    events: Events, features: LogFeatures, settings: OnlineSettings, line: CollisionLine
) -> Iterator[CollisionEpoch]:
    """Train at the load of a line, and yield the results of each epoch.

    The rules of the features file for admission and expiry do not apply, since every epoch repeats
    all training rows.

    Raises:
        InputError: a column is unknown, the log is too small to be split, or all test rows have
            the same label.
    """
    columns, load, seed = _indexes(features, line.columns), line.load, settings.run.seed
    hashed = hash_columns(events.ids.values, columns, load, seed=seed)
    events = replace(events, ids=Ids(hashed))
    train_rows, test_rows = split_rows(len(events))
    test = events.filter(test_rows)
    counted = slice(None) if test.weights is None else test.weights > 0
    if len(np.unique(test.labels[counted])) < 2:
        raise InputError("all test rows have one label; an AUC needs both, so use a longer log")
    trainer = _new_trainer(features, settings, hashed)
    optimizer = trainer.optimizer
    for epoch in range(1, line.epochs + 1):
        steps = []
        for rows in epoch_batches(train_rows, settings.run.batch_size, seed, epoch):
            batch = events.filter(rows)
            trainer.train(batch)
            distinct = sum(len(np.unique(batch.ids.values[:, column])) for column in columns)
            clip = (optimizer.clipped_share.numpy(), optimizer.mean_clip_factor.numpy())
            steps.append((len(batch) * len(columns) / distinct, *map(float, clip)))
        trainer.check_loss()
        count, share, factor = np.mean(steps, axis=0).tolist()
        scores = trainer.predict(test)
        kept = trainer.table.statistics().rows
        yield CollisionEpoch(
            load=load,
            seed=seed,
            epoch=epoch,
            auc=metrics.roc_auc(test.labels, scores, sample_weight=test.weights),
            log_loss=metrics.log_loss(test.labels, scores, sample_weight=test.weights),
            ids=sum(kept),
            hashed_ids=sum(kept[column] for column in columns),
            count=count,
            clipped_share=share,
            mean_clip_factor=factor,
        )


def _new_trainer(features: LogFeatures, settings: OnlineSettings, ids: Array) -> OnlineTrainer:
    """Return a trainer whose tables hold these ids, int64 [n, F], all admitted at once."""
    from cowclip_merlin.online.training.trainer import OnlineTrainer

    compat.release_models()
    set_up_tensorflow(settings.run.seed, "cpu")
    columns = tuple(replace(column, rules=FieldRules()) for column in features.categorical)
    capacity = settings.capacity
    if capacity is None and settings.max_rows is None:
        capacity = sum(len(np.unique(column)) for column in ids.T) + ids.shape[1]
    settings = replace(settings, capacity=capacity)
    return OnlineTrainer(settings, replace(features, categorical=columns))


def _indexes(features: LogFeatures, chosen: Sequence[str]) -> list[int]:
    """Return the indexes of the columns to hash; refuse those that this cannot hash."""
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
    for name in chosen:
        one_of("columns", name, names)
    return [names.index(name) for name in chosen or names]


@dataclass(frozen=True, kw_only=True)
class CollisionRun:
    """One training at the load of a line, with a seed."""

    line: CollisionLine
    settings: OnlineSettings
    session: LogSession

    @cached_property
    def config_hash(self) -> str:
        """Hash of the run; admission and expiry do not apply to it."""
        features, line = self.session.features, self.line
        # By other names than those of the line, as the hashes of recorded runs are.
        trained = {"loads": [line.load]} | ({"fields": line.columns} if line.columns else {})
        trained |= {"epochs": line.epochs} if line.epochs != CollisionLine.epochs else {}
        columns = tuple(replace(column, rules=FieldRules()) for column in features.categorical)
        columns += features.continuous + features.vectors
        weight = (features.weight,) if features.weight else ()  # the others keep their hash
        parts = (trained, columns, self.session.fingerprint, *weight)
        return hash_settings(self.settings, *parts)

    @property
    def text(self) -> str:
        """Seed and line, for readers."""
        return f"seed {self.settings.run.seed}, {self.line.label}"


_MEASURES = (
    Measure("log_loss", "log loss", 1, 4),
    Measure("ids", "ids of all columns", 1, 0),
    Measure("hashed_ids", "ids of hashed columns", 1, 0),
    Measure("count", "occurrences of such an id in a batch", 1, 2),
    Measure("clipped_share", "rows clipped, %", 100, 2),
    Measure("mean_clip_factor", "mean clip factor", 1, 4),
)


class CollisionRuns(LogRuns):
    """The trainings of an experiment; each has a row in `collisions.csv` for each epoch."""

    def plan(self) -> list[CollisionRun]:
        """Return all runs, with or without a result, seed by seed."""
        return [
            CollisionRun(line=line, settings=self.session.model_of(seed), session=self.session)
            for seed in range(1, self.session.settings.seeds + 1)
            for line in self.experiment.lines
        ]

    def _read(self) -> list[CollisionResult]:
        """Read all epochs of the results folder in the order in which their runs ended."""
        return read_rows(self.session.out / COLLISIONS_CSV, CollisionResult)

    def pending(self) -> list[CollisionRun]:
        """Return the runs that have no result."""
        known = {row.config_hash for row in self._read()}
        return [run for run in self.plan() if run.config_hash not in known]

    def name(self, run: CollisionRun) -> str:
        """Name the seed and the line."""
        return run.text

    def finished_seconds(self) -> Iterable[float]:
        """Return the times of the runs of this log."""
        mine = [x for x in self._read() if x.data_fingerprint == self.session.fingerprint]
        return {each.config_hash: each.seconds for each in mine}.values()

    @cached_property
    def _events(self) -> Events:
        log = EventLog(self.session.settings.files, self.session.features)
        return Events.concatenate(list(log))

    def make(self, run: CollisionRun) -> str:
        """Train for all epochs; return the best AUC and the time."""
        began, session = time.perf_counter(), self.session
        epochs = list(run_collisions(self._events, session.features, run.settings, run.line))
        seconds, made_with = round(time.perf_counter() - began, 1), versions()
        results = [
            CollisionResult(
                **asdict(epoch),
                config_hash=run.config_hash,
                data=session.data_name,
                data_fingerprint=session.fingerprint,
                seconds=seconds,
                revision=made_with.get("git_revision", made_with["cowclip_merlin"]),
                tensorflow=made_with["tensorflow"],
            )
            for epoch in epochs
        ]
        append_rows(session.out / COLLISIONS_CSV, results)
        best = max(epochs, key=lambda each: each.auc)
        return f"{run.text}: AUC {100 * best.auc:.2f}% after epoch {best.epoch}, {seconds:.0f} s"

    def write(self) -> Iterator[str]:
        """Write table and figure, and yield their text."""
        session, experiment = self.session, self.experiment
        wanted = {run.config_hash: run for run in self.plan()}
        of_line: dict[str, list[CollisionResult]] = {x.label: [] for x in experiment.lines}
        for row in self._read():
            if row.config_hash in wanted:
                of_line[wanted[row.config_hash].line.label].append(row)
        epoch, texts = best_epoch(of_line[experiment.reference]), session.texts(experiment)
        by_seed = {
            label: {row.seed: row for row in rows if row.epoch == epoch}
            for label, rows in of_line.items()
        }
        measures = [Measure("auc", "AUC, %", 100, 2), self.gain(2), *_MEASURES]
        notes = [f"After epoch {epoch}, the best of {experiment.reference!r}."]
        yield self.show_table(by_seed, measures, notes, texts)
        figure = draw_collisions(of_line)
        yield write_experiment_figure(session.out, figure, experiment, texts)


def _aucs_by_epoch(results: Sequence[CollisionEpoch]) -> dict[int, list[float]]:
    """Return epoch -> AUC of each seed in %."""
    found: dict[int, list[float]] = {}
    for each in sorted(results, key=lambda result: (result.epoch, result.seed)):
        found.setdefault(each.epoch, []).append(100 * each.auc)
    return found


def best_epoch(results: Sequence[CollisionEpoch]) -> int:
    """Return the epoch of a line with its highest mean AUC."""
    aucs = _aucs_by_epoch(results)
    return max(aucs, key=lambda epoch: np.mean(aucs[epoch]))


def draw_collisions(results: Mapping[str, Sequence[CollisionEpoch]]) -> Figure:
    """Draw the test AUC by epoch, one curve for each line, as in Figure 7 of Monolith."""
    by_line = {label: _aucs_by_epoch(rows) for label, rows in results.items()}
    curves = [
        Curve(label=label, x=tuple(aucs), runs=list(zip(*aucs.values(), strict=True)))
        for label, aucs in by_line.items()
        if aucs
    ]
    return draw_epochs({"test AUC, %": curves})
