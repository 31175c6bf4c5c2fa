"""What experiments on a log share: the log, names and time of runs, and the table of all lines."""

from __future__ import annotations

import hashlib
import json
import shlex
import statistics
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cached_property
from typing import Any

from cowclip_merlin.experiments.definitions import LogExperiment, Measure
from cowclip_merlin.experiments.runs import ResultsSession, Runs, given_words
from cowclip_merlin.experiments.settings import LogSettings
from cowclip_merlin.experiments.tables import (
    Cell,
    experiment_table,
    mean_cell,
    table_text,
    verdict,
    write_table,
)
from cowclip_merlin.online.events.features import load_features
from cowclip_merlin.online.settings import OnlineSettings
from cowclip_merlin.scaling import Hyperparameters
from cowclip_merlin.settings import words_of
from cowclip_merlin.system.checksums import checksum
from cowclip_merlin.system.folders import REPLAYS_CSV
from cowclip_merlin.training import RunSettings
from cowclip_merlin.types import Json


def hash_settings(settings: OnlineSettings, *parts: Json) -> str:
    """Return a hash that is equal for runs that train the same.

    Settings at their defaults are omitted, so that a new option does not change the names of
    earlier runs. `parts` are what else the training depends on: dataclasses and plain values.
    """
    run = RunSettings(model="deepfm", batch_size=1, update="lazy", epochs=1)
    usual, given = OnlineSettings(run=run).as_dict(), settings.as_dict()
    table = {k: v for k, v in given.items() if k != "run" and v != usual[k]}
    of_run = {k: v for k, v in given["run"].items() if v != usual["run"][k]}
    values = [table, of_run, *(_changed(part) for part in parts)]
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def _changed(value: object) -> Json:
    """Return plain values for JSON, without attributes of dataclasses at their defaults."""
    if isinstance(value, tuple):
        return [_changed(each) for each in value]
    if not is_dataclass(value):
        return value
    usual = {
        field.name: field.default_factory() if callable(field.default_factory) else field.default
        for field in fields(value)
    }
    given = {name: getattr(value, name) for name in usual}
    return {name: _changed(each) for name, each in given.items() if each != usual[name]}


class LogSession(ResultsSession):
    """One log and its results folder.

    Raises:
        InputError: if the features file is missing or wrong, or the results folder is a folder of
            something else.
    """

    results_file = REPLAYS_CSV

    def __init__(self, settings: LogSettings) -> None:
        super().__init__(settings.out)
        self.settings = settings
        self.features = load_features(settings.features)
        self.data_name = settings.name or settings.files[0].name

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of the contents of the log's files."""
        sums = [checksum(path) for path in self.settings.files]
        return hashlib.sha256(" ".join(sums).encode()).hexdigest()[:12]

    def runs(self, experiment: LogExperiment) -> Runs:
        """Return the runs of an experiment."""
        from cowclip_merlin.experiments.on_logs.collisions import CollisionRuns
        from cowclip_merlin.experiments.on_logs.replays import ReplayRuns

        kind = CollisionRuns if experiment.kind == "collisions" else ReplayRuns
        return kind(self, experiment)

    def describe_data(self, events: str = "") -> str:
        """Describe the log and the model in one line; `events`: their number, once it is known."""
        run, days = self.settings.model.run, self.settings.batch_days
        widths = "-".join(map(str, run.mlp))
        log = f"{self.data_name}: {events}" if events else self.data_name
        first = f"first {days:g} day{'s' * (days != 1)} only trained"
        return f"{log}; {first}; {run.model}, MLP {widths}, batch {run.batch_size:,}"

    def command(self, experiment: LogExperiment) -> str:
        """Return the command that repeats this; LOG, FEATURES and RESULTS stand for paths."""
        words = ["cowclip", "experiment", experiment.cli_name]
        words += ["--log", "LOG", "--features", "FEATURES", "--out", "RESULTS"]
        words += given_words(self.settings, without=("files", "features", "out", "model"))
        model = self.settings.model
        words += given_words(model.run, without=("update", "epochs", "seed", "overrides"))
        words += words_of(Hyperparameters, model.run.overrides)
        return shlex.join([*words, *given_words(model, without=("run",))])

    def model_of(self, seed: int) -> OnlineSettings:
        """Return the settings of the model with a seed."""
        model = self.settings.model
        return replace(model, run=replace(model.run, seed=seed))


class LogRuns(Runs):
    """The runs of an experiment on a log."""

    session: LogSession
    experiment: LogExperiment

    def describe(self) -> str:
        """Describe the log and the model."""
        return self.session.describe_data()

    @abstractmethod
    def finished_seconds(self) -> Iterable[float]:
        """Return the times of the finished runs like these."""

    def seconds(self, runs: Sequence[Any]) -> float | None:
        """Return the mean time of a finished run for each; None before the first."""
        found = list(self.finished_seconds())
        return statistics.fmean(found) * len(runs) if found else None

    def gain(self, decimals: int) -> Measure:
        """Return the column of differences from the reference line with the same seed."""
        heading = f"gain over {self.experiment.reference!r}, points"
        return Measure("gain", heading, 100, decimals)

    def show_table(
        self,
        results: Mapping[str, Mapping[int, Any]],
        measures: Sequence[Measure],
        notes: Sequence[str],
        texts: Mapping[str, str],
    ) -> str:
        """Write the table, one row for each line, and return its text.

        The verdict of a gain says whether its mean differs from 0.

        Args:
            results: label of a line -> seed -> its result, where there is one.
            measures: the columns.
            notes: lines below the table.
            texts: `data`, `command` and `fingerprint`.
        """
        lines, seeds = self.experiment.lines, self.session.settings.seeds
        table = experiment_table(
            self.experiment,
            notes=notes,
            unit="units in the headings",
            columns=tuple(measure.heading for measure in measures),
            rows=tuple(
                (line.label, tuple(self._cell(line, results, each) for each in measures))
                for line in lines
            ),
            reference=self.experiment.reference,
            missing=tuple(
                f"{line.label}: {seeds - len(results[line.label])} of {seeds} seeds"
                for line in lines
                if len(results[line.label]) < seeds
            ),
            on_log=True,
            decimals_of_columns=tuple(measure.decimals for measure in measures),
            **texts,
        )
        write_table(self.session.out / "tables", table)
        return table_text(table)

    def _cell(self, line: Any, results: Mapping[str, Mapping[int, Any]], measure: Measure) -> Cell:
        published = getattr(line, "published", {}).get(measure.attribute)
        note = line.note if published is not None and line.note else ""
        known: dict[str, Any] = {"published": published, "note": note}
        mine, gain = results[line.label], measure.attribute == "gain"
        if gain and line.label == self.experiment.reference:
            return Cell(text="", **known)
        reference = results[self.experiment.reference] if gain else mine
        pairs = [(mine[seed], reference[seed]) for seed in mine if seed in reference]
        if not pairs:
            return Cell(**known)
        # A training on a log without a replay has a result only if it is done.
        if any(getattr(each, "status", "done") == "diverged" for pair in pairs for each in pair):
            return Cell(text="diverged", runs=len(pairs), **known)
        if gain:
            cell = mean_cell([measure.factor * (a.auc - b.auc) for a, b in pairs], **known)
            return replace(cell, verdict=verdict(cell, Cell(mean=0.0, spread=0.0, runs=1)))
        return mean_cell([measure.of(a) for a, _ in pairs], **known)
