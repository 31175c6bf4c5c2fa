"""The experiments of kind "collisions": their missing runs, their results, table and figure."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from cowclip_merlin.experiments.definitions import CollisionLine, LogExperiment
from cowclip_merlin.experiments.figures import write_experiment_figure
from cowclip_merlin.experiments.online.collision_outputs import (
    MEASURES,
    best_epoch,
    draw_collisions,
)
from cowclip_merlin.experiments.online.collision_settings import (
    CollisionEpoch,
    CollisionSettings,
)
from cowclip_merlin.experiments.online.collisions import read_events, run_collisions
from cowclip_merlin.experiments.online.config_hash import hash_settings
from cowclip_merlin.experiments.online.csv_rows import append_rows, read_rows
from cowclip_merlin.experiments.online.session import LogSession
from cowclip_merlin.experiments.tables.files import write_markdown, write_table
from cowclip_merlin.experiments.tables.table import (
    Cell,
    Table,
    experiment_table,
    mean_cell,
    verdict,
)
from cowclip_merlin.experiments.tables.text import table_text
from cowclip_merlin.online.settings import OnlineSettings
from cowclip_merlin.system.folders import COLLISIONS_CSV
from cowclip_merlin.system.versions import versions
from cowclip_merlin.tables import FieldRules

_NOTHING = Cell(mean=0.0, spread=0.0, runs=1)


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
        columns += features.continuous
        return hash_settings(self.settings, self.collisions, columns, self.session.fingerprint)

    @property
    def text(self) -> str:
        """Seed and line, for readers."""
        return f"seed {self.settings.run.seed}, {self.line.label}"


def plan_collisions(session: LogSession, experiment: LogExperiment) -> list[CollisionRun]:
    """Return all runs of an experiment, with or without a result, seed by seed."""
    model = session.settings.model
    return [
        CollisionRun(
            line=line, settings=replace(model, run=replace(model.run, seed=seed)), session=session
        )
        for seed in range(1, session.settings.seeds + 1)
        for line in experiment.lines
    ]


def pending_collisions(session: LogSession, experiment: LogExperiment) -> list[CollisionRun]:
    """Return the runs that have no result."""
    known = {row.config_hash for row in _read(session)}
    return [run for run in plan_collisions(session, experiment) if run.config_hash not in known]


def make_collisions(session: LogSession, experiment: LogExperiment) -> Iterator[str]:
    """Make the missing runs, record each, and yield one line of text for each."""
    pending = pending_collisions(session, experiment)
    events = read_events(session.settings.files, session.features) if pending else None
    for run in pending:
        started, seeds = time.perf_counter(), [run.settings.run.seed]
        epochs = list(run_collisions(events, session.features, run.settings, run.collisions, seeds))
        seconds = round(time.perf_counter() - started, 1)
        append_rows(session.settings.out / COLLISIONS_CSV, _results(run, epochs, seconds))
        best = max(epochs, key=lambda each: each.auc)
        yield f"{run.text}: AUC {100 * best.auc:.2f}% after epoch {best.epoch}, {seconds:.0f} s"


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


def collision_seconds(session: LogSession) -> float | None:
    """Return the mean time of the runs of this log; None before the first."""
    found = {
        row.config_hash: row.seconds
        for row in _read(session)
        if row.data_fingerprint == session.fingerprint
    }
    return sum(found.values()) / len(found) if found else None


def _read(session: LogSession) -> list[CollisionResult]:
    return read_rows(session.settings.out / COLLISIONS_CSV, CollisionResult)


def write_collisions(session: LogSession, experiment: LogExperiment) -> Iterator[str]:
    """Write table and figure, and yield their text."""
    wanted = {run.config_hash: run for run in plan_collisions(session, experiment)}
    results = [row for row in _read(session) if row.config_hash in wanted]
    of_line: dict[str, list[CollisionResult]] = {line.label: [] for line in experiment.lines}
    for row in results:
        of_line[wanted[row.config_hash].line.label].append(row)
    texts = session.table_texts(experiment, "")
    epoch = best_epoch(of_line[experiment.reference])
    table = _table(experiment, of_line, epoch, session.settings.seeds, texts)
    out = session.settings.out
    write_table(out / "tables", table)
    write_markdown(out / "tables", table)
    yield table_text(table)
    yield write_experiment_figure(out, draw_collisions(results), experiment, texts)


def _table(
    experiment: LogExperiment,
    of_line: Mapping[str, Sequence[CollisionResult]],
    epoch: int,
    seeds: int,
    texts: Mapping[str, Any],
) -> Table:
    """Make the table after one epoch, with the gain over the reference line by seed."""
    found = {
        label: {row.seed: row for row in rows if row.epoch == epoch}
        for label, rows in of_line.items()
    }
    reference = found[experiment.reference]
    rows = []
    for label, mine in found.items():
        cells = [_cell([getattr(row, name) for row in mine.values()], name) for name in MEASURES]
        pairs = [100 * (row.auc - reference[s].auc) for s, row in mine.items() if s in reference]
        gain = mean_cell(pairs)
        gain = replace(gain, verdict=verdict(gain, _NOTHING))
        cells.insert(1, Cell(text="") if label == experiment.reference else gain)
        rows.append((label, tuple(cells)))
    headings = [heading for heading, _, _ in MEASURES.values()]
    decimals = [decimals for _, _, decimals in MEASURES.values()]
    headings.insert(1, f"gain over {experiment.reference!r}, points")
    decimals.insert(1, 2)
    return experiment_table(
        experiment,
        notes=[f"After epoch {epoch}, the best of {experiment.reference!r}."],
        unit="units in the headings",
        columns=tuple(headings),
        rows=tuple(rows),
        reference=experiment.reference,
        missing=tuple(
            f"{label}: {seeds - len(mine)} of {seeds} seeds"
            for label, mine in found.items()
            if len(mine) < seeds
        ),
        on_log=True,
        decimals_of_columns=tuple(decimals),
        **texts,
    )


def _cell(values: Sequence[float], name: str) -> Cell:
    factor = MEASURES[name][1]
    return mean_cell([factor * value for value in values])
