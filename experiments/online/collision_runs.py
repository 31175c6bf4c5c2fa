"""Trainings with ids in buckets: the runs of the experiments of kind "collisions"."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property

from cowclip_merlin.experiments.definitions import CollisionLine
from cowclip_merlin.experiments.online.collisions import (
    CollisionEpoch,
    CollisionSettings,
    read_events,
    run_collisions,
)
from cowclip_merlin.experiments.online.config_hash import hash_settings
from cowclip_merlin.experiments.online.log_runs import (
    LogRuns,
)
from cowclip_merlin.experiments.online.session import LogSession
from cowclip_merlin.experiments.results.csv_table import append_rows, read_rows
from cowclip_merlin.online.events.events import Events
from cowclip_merlin.online.settings import OnlineSettings
from cowclip_merlin.system.folders import COLLISIONS_CSV
from cowclip_merlin.system.machine import versions
from cowclip_merlin.tables import FieldRules


@dataclass(frozen=True, kw_only=True)
class CollisionResult(CollisionEpoch):
    """One epoch of a run, as a row of `collisions.csv`.

    Attributes:
        config_hash: of the run, equal for runs that train the same.
        data: name of the log.
        data_fingerprint: of the log.
        seconds: of the whole run.
        revision: git revision of this package, or its version.
        tensorflow: its version.
    """

    config_hash: str
    data: str
    data_fingerprint: str
    seconds: float
    revision: str
    tensorflow: str


@dataclass(frozen=True, kw_only=True)
class CollisionRun:
    """One training at one load.

    Attributes:
        line: of the experiment.
        settings: of the model, with the seed.
        session: the log.
    """

    line: CollisionLine
    settings: OnlineSettings
    session: LogSession

    @property
    def collisions(self) -> CollisionSettings:
        """Load, columns and epochs of this run."""
        line = self.line
        return CollisionSettings(loads=(line.load,), fields=line.columns, epochs=line.epochs)

    @cached_property
    def config_hash(self) -> str:
        """Hash of the run; admission and expiry do not apply to it."""
        features = self.session.features
        columns = tuple(replace(column, rules=FieldRules()) for column in features.categorical)
        columns += features.continuous + features.vectors
        weight = (features.weight,) if features.weight else ()  # the others keep their hash
        parts = (self.collisions, columns, self.session.fingerprint, *weight)
        return hash_settings(self.settings, *parts)

    @property
    def text(self) -> str:
        """Seed and line, for readers."""
        return f"seed {self.settings.run.seed}, {self.line.label}"


class CollisionRuns(LogRuns[CollisionRun]):
    """The trainings of an experiment; each has a row in `collisions.csv` for each epoch."""

    def plan(self) -> list[CollisionRun]:
        """Return all runs, with or without a result, seed by seed."""
        model = self.session.settings.model
        return [
            CollisionRun(
                line=line,
                settings=replace(model, run=replace(model.run, seed=seed)),
                session=self.session,
            )
            for seed in range(1, self.session.settings.seeds + 1)
            for line in self.experiment.lines
        ]

    def pending(self) -> list[CollisionRun]:
        """Return the runs that have no result."""
        known = {row.config_hash for row in read_collisions(self.session)}
        return [run for run in self.plan() if run.config_hash not in known]

    def name(self, run: CollisionRun) -> str:
        """Name the seed and the line."""
        return run.text

    def finished_seconds(self) -> Iterable[float]:
        """Return the times of the runs of this log."""
        rows, mine = read_collisions(self.session), self.session.fingerprint
        found = {x.config_hash: x.seconds for x in rows if x.data_fingerprint == mine}
        return found.values()

    @cached_property
    def _events(self) -> Events:
        return read_events(self.session.settings.files, self.session.features)

    def make(self, run: CollisionRun) -> str:
        """Train for all epochs; return the best AUC and the time."""
        began, session, seeds = time.perf_counter(), self.session, [run.settings.run.seed]
        trained = run_collisions(
            self._events, session.features, run.settings, run.collisions, seeds
        )
        epochs = list(trained)
        seconds = round(time.perf_counter() - began, 1)
        append_rows(session.out / COLLISIONS_CSV, _results(run, epochs, seconds))
        best = max(epochs, key=lambda each: each.auc)
        return f"{run.text}: AUC {100 * best.auc:.2f}% after epoch {best.epoch}, {seconds:.0f} s"


def _results(
    run: CollisionRun, epochs: Sequence[CollisionEpoch], seconds: float
) -> list[CollisionResult]:
    made_with = versions()
    return [
        CollisionResult(
            **asdict(epoch),
            config_hash=run.config_hash,
            data=run.session.data_name,
            data_fingerprint=run.session.fingerprint,
            seconds=seconds,
            revision=made_with.get("git_revision", made_with["cowclip_merlin"]),
            tensorflow=made_with["tensorflow"],
        )
        for epoch in epochs
    ]


def read_collisions(session: LogSession) -> list[CollisionResult]:
    """Read all epochs of the results folder in the order in which their runs ended."""
    return read_rows(session.out / COLLISIONS_CSV, CollisionResult)
