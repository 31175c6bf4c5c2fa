"""What replays of a log and trainings on it share: the time of a run, the table of all lines."""

from __future__ import annotations

import statistics
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from cowclip_merlin.experiments.definitions import LogExperiment
from cowclip_merlin.experiments.online.session import LogSession
from cowclip_merlin.experiments.runs import Run, Runs
from cowclip_merlin.experiments.tables.table import (
    Cell,
    experiment_table,
    mean_cell,
    table_text,
    verdict,
    write_markdown,
    write_table,
)

if TYPE_CHECKING:
    from cowclip_merlin.experiments.definitions.experiment import CollisionLine, ReplayLine
    from cowclip_merlin.experiments.online.collisions import CollisionEpoch
    from cowclip_merlin.experiments.results.result import ReplayResult

GAIN = "gain"
"""The measure of differences from the reference line with the same seed, in points of AUC."""

_NOTHING = Cell(mean=0.0, spread=0.0, runs=1)


class LogRuns(Runs[LogSession, LogExperiment, Run]):
    """The runs of an experiment on a log."""

    def describe(self) -> str:
        """Describe the log and the model."""
        return self.session.describe_data()

    @abstractmethod
    def finished_seconds(self) -> Iterable[float]:
        """Return the times of the finished runs like these."""

    def seconds(self, runs: Sequence[Run]) -> float | None:
        """Return the mean time of a finished run for each; None before the first."""
        found = list(self.finished_seconds())
        return statistics.fmean(found) * len(runs) if found else None


class Measure(NamedTuple):
    """A column of a table: an attribute of the results, times a factor."""

    attribute: str
    heading: str
    factor: float
    decimals: int


def gain_measure(experiment: LogExperiment, decimals: int) -> Measure:
    """Return the column of gains over the reference line."""
    return Measure(GAIN, f"gain over {experiment.reference!r}, points", 100, decimals)


def show_table(
    session: LogSession,
    experiment: LogExperiment,
    results: Mapping[str, Mapping[int, ReplayResult | CollisionEpoch]],
    measures: Sequence[Measure],
    notes: Sequence[str],
    texts: Mapping[str, str],
) -> str:
    """Write the table of an experiment, one row for each line, and return its text.

    The verdict of a gain says whether its mean differs from 0.

    Args:
        session: the log and the results folder.
        experiment: the experiment.
        results: label of a line -> seed -> its result, where there is one.
        measures: the columns.
        notes: lines below the table.
        texts: result of `session.texts`.
    """
    seeds, out = session.settings.seeds, session.out / "tables"
    table = experiment_table(
        experiment,
        notes=notes,
        unit="units in the headings",
        columns=tuple(measure.heading for measure in measures),
        rows=tuple(
            (line.label, tuple(_cell(experiment, line, results, each) for each in measures))
            for line in experiment.lines
        ),
        reference=experiment.reference,
        missing=tuple(
            f"{line.label}: {seeds - len(results[line.label])} of {seeds} seeds"
            for line in experiment.lines
            if len(results[line.label]) < seeds
        ),
        on_log=True,
        decimals_of_columns=tuple(measure.decimals for measure in measures),
        **texts,
    )
    write_table(out, table)
    write_markdown(out, table)
    return table_text(table)


def _cell(
    experiment: LogExperiment,
    line: ReplayLine | CollisionLine,
    results: Mapping[str, Mapping[int, ReplayResult | CollisionEpoch]],
    measure: Measure,
) -> Cell:
    published = getattr(line, "published", {}).get(measure.attribute)
    note = line.note if published is not None and line.note else ""
    known: dict[str, Any] = {"published": published, "note": note}
    mine, gain = results[line.label], measure.attribute == GAIN
    if gain and line.label == experiment.reference:
        return Cell(text="", **known)
    reference = results[experiment.reference] if gain else mine
    pairs = [(mine[seed], reference[seed]) for seed in mine if seed in reference]
    if not pairs:
        return Cell(**known)
    if any("diverged" in (_status(one), _status(other)) for one, other in pairs):
        return Cell(text="diverged", runs=len(pairs), **known)
    if gain:
        cell = mean_cell([measure.factor * (a.auc - b.auc) for a, b in pairs], **known)
        return replace(cell, verdict=verdict(cell, _NOTHING))
    return mean_cell([measure.factor * getattr(a, measure.attribute) for a, _ in pairs], **known)


def _status(result: ReplayResult | CollisionEpoch) -> str:
    """Return the status of a result; a training on a log has one only if it is done."""
    return getattr(result, "status", "done")
