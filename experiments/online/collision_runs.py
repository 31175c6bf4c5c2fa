"""Trainings with ids in buckets: their runs, table and figure."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin.experiments.definitions import CollisionLine, LogExperiment
from cowclip_merlin.experiments.figures import write_experiment_figure
from cowclip_merlin.experiments.online.collisions import (
    CollisionEpoch,
    CollisionSettings,
    read_events,
    run_collisions,
)
from cowclip_merlin.experiments.online.log_runs import (
    LogRuns,
    Measure,
    gain_measure,
    show_table,
)
from cowclip_merlin.experiments.online.session import LogSession, hash_settings
from cowclip_merlin.experiments.results.result import append_rows, read_rows
from cowclip_merlin.online.events.events import Events
from cowclip_merlin.online.settings import OnlineSettings
from cowclip_merlin.plotting.style import figure_settings, new_figure, style
from cowclip_merlin.system.folders import COLLISIONS_CSV
from cowclip_merlin.system.machine import versions
from cowclip_merlin.tables import FieldRules

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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


MEASURES = {
    "auc": ("AUC, %", 100, 2),
    "log_loss": ("log loss", 1, 4),
    "ids": ("ids of all columns", 1, 0),
    "hashed_ids": ("ids of hashed columns", 1, 0),
    "count": ("occurrences of such an id in a batch", 1, 2),
    "clipped_share": ("rows clipped, %", 100, 2),
    "mean_clip_factor": ("mean clip factor", 1, 4),
}
"""Attribute of a `CollisionEpoch` -> heading, factor and decimals in the table."""


def write_collisions(session: LogSession, experiment: LogExperiment) -> Iterator[str]:
    """Write table and figure, and yield their text."""
    wanted = {run.config_hash: run for run in CollisionRuns(session, experiment).plan()}
    results = [row for row in read_collisions(session) if row.config_hash in wanted]
    of_line: dict[str, list[CollisionResult]] = {line.label: [] for line in experiment.lines}
    for row in results:
        of_line[wanted[row.config_hash].line.label].append(row)
    epoch, texts = best_epoch(of_line[experiment.reference]), session.texts(experiment)
    by_seed = {
        label: {row.seed: row for row in rows if row.epoch == epoch}
        for label, rows in of_line.items()
    }
    measures = [Measure(name, *each) for name, each in MEASURES.items()]
    measures.insert(1, gain_measure(experiment, 2))
    notes = [f"After epoch {epoch}, the best of {experiment.reference!r}."]
    yield show_table(session, experiment, by_seed, measures, notes, texts)
    yield write_experiment_figure(session.out, draw_collisions(results), experiment, texts)


def draw_collisions(results: Sequence[CollisionEpoch]) -> Figure:
    """Draw the test AUC by epoch, one curve for each load, as in Figure 7 of Monolith.

    Lines are means over the seeds, and bands span the minimum to the maximum.

    Returns:
        A matplotlib `Figure`.
    """
    with figure_settings():
        figure = new_figure(5.6, 3.6)
        axes = figure.subplots()
        for index, load in enumerate(_loads(results)):
            epochs = sorted({each.epoch for each in results if each.load == load})
            aucs = [_aucs(results, load, epoch) for epoch in epochs]
            look = style(index, len(epochs))
            axes.plot(epochs, [np.mean(each) for each in aucs], label=load_text(load), **look)
            low, high = [min(each) for each in aucs], [max(each) for each in aucs]
            axes.fill_between(epochs, low, high, color=look["color"], alpha=0.18, linewidth=0)
        axes.set(xlabel="epoch", ylabel="test AUC, %")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(title="ids per bucket", fontsize=8)
    return figure


def best_epoch(results: Sequence[CollisionEpoch]) -> int:
    """Return the epoch with the highest mean AUC of the runs with the lowest load."""
    first = _loads(results)[0]
    epochs = sorted({each.epoch for each in results if each.load == first})
    return max(epochs, key=lambda epoch: np.mean(_aucs(results, first, epoch)))


def load_text(load: float) -> str:
    """Format a load for readers.

    >>> load_text(0), load_text(0.163), load_text(4.0)
    ('none', '0.163', '4')
    """
    return f"{load:g}" if load else "none"


def _loads(results: Sequence[CollisionEpoch]) -> list[float]:
    return sorted({each.load for each in results})


def _aucs(results: Sequence[CollisionEpoch], load: float, epoch: int) -> list[float]:
    """Return the AUC of each seed in %."""
    return [100 * each.auc for each in results if (each.load, each.epoch) == (load, epoch)]
