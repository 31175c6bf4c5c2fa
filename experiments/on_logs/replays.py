"""Replays of a log with different sync intervals and rules: their runs, tables and figures."""

from __future__ import annotations

import csv
import math
import shutil
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin.errors import Diverged, InputError
from cowclip_merlin.experiments.definitions import NEVER, LogExperiment, Measure, ReplayLine
from cowclip_merlin.experiments.figures import (
    Curve,
    draw_by_label,
    draw_epochs,
    error_bars,
    panels,
    write_experiment_figure,
)
from cowclip_merlin.experiments.on_logs.log_runs import LogRuns, hash_settings
from cowclip_merlin.experiments.results import ReplayResult, append_rows, read_replays
from cowclip_merlin.experiments.runs import (
    NO_FIGURE,
    machine_columns,
    quiet_training,
    settings_columns,
    start_columns,
)
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.events.values import parse_duration
from cowclip_merlin.online.replaying.replay_folder import replay_log
from cowclip_merlin.online.replaying.settings import ReplaySettings
from cowclip_merlin.online.settings import OnlineSettings
from cowclip_merlin.plotting.style import style_of_many
from cowclip_merlin.system.files import read_json
from cowclip_merlin.system.folders import REPLAYS_CSV
from cowclip_merlin.system.machine import hardware
from cowclip_merlin.tables.layout import FieldRules
from cowclip_merlin.types import JsonObject

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class ReplayRun:
    """One replay of a plan, for all lines with its rules."""

    label: str  # of these lines
    settings: OnlineSettings  # with the seed
    features: LogFeatures  # with the rules
    batch_days: float
    sync: tuple[str, ...]  # intervals to score

    def config_hash(self, fingerprint: str) -> str:
        """Return a hash that is equal for replays of the log that train the same.

        Serving copies do not change the training, so `sync` is not a part of it.
        """
        return hash_settings(self.settings, self.features, self.batch_days, fingerprint)

    def run_id(self, fingerprint: str) -> str:
        """Return a readable name for the run's folder."""
        run = self.settings.run
        parts = (run.model, f"b{run.batch_size}", f"s{run.seed}", self.config_hash(fingerprint))
        return "-".join((*parts, *self.sync))


def line_features(features: LogFeatures, line: ReplayLine) -> LogFeatures:
    """Return the columns with the rules of a line in place of those of the features file."""
    changed = {}
    if line.admit is not None:
        changed["admit"] = line.admit
    if line.ttl is not None:
        changed["ttl"] = 0 if line.ttl == NEVER else parse_duration(line.ttl, "ttl")
    columns = [replace(c, rules=replace(c.rules, **changed)) for c in features.categorical]
    return replace(features, categorical=tuple(columns))


LineResults = Mapping[str, Mapping[int, ReplayResult]]
"""Label of a line -> seed -> its result, where there is one."""

_COUNTS = ("refused", "expired", "evicted")
_AUC, _LOSS = Measure("auc", "AUC, %", 100, 3), Measure("log_loss", "log loss", 1, 4)
_KEPT = Measure("ids_kept", "ids kept", 1, 0)


class ReplayRuns(LogRuns):
    """The replays of an experiment; each has a row in `replays.csv` for each sync interval."""

    def plan(self) -> list[ReplayRun]:
        """Return all replays, with or without a result, seed by seed."""
        groups: dict[LogFeatures, list[ReplayLine]] = {}
        for line in self.experiment.lines:
            groups.setdefault(line_features(self.session.features, line), []).append(line)
        return [
            ReplayRun(
                label=", ".join(line.label for line in lines),
                settings=self.session.model_of(seed),
                features=features,
                batch_days=self.session.settings.batch_days,
                sync=tuple(dict.fromkeys(line.sync for line in lines)),
            )
            for seed in range(1, self.session.settings.seeds + 1)
            for features, lines in groups.items()
        ]

    def results(self) -> LineResults:
        """Return the existing results."""
        found = {(x.config_hash, x.sync): x for x in read_replays(self.session.out)}
        results: dict[str, dict[int, ReplayResult]] = {x.label: {} for x in self.experiment.lines}
        for run in self.plan():
            training, seed = run.config_hash(self.session.fingerprint), run.settings.run.seed
            for line in self.experiment.lines:
                same = line_features(self.session.features, line) == run.features
                if same and (training, line.sync) in found:
                    results[line.label][seed] = found[training, line.sync]
        return results

    def pending(self) -> list[ReplayRun]:
        """Return the replays that have intervals without a result, with those intervals only."""
        known = {(each.config_hash, each.sync) for each in read_replays(self.session.out)}
        pending = []
        for run in self.plan():
            training = run.config_hash(self.session.fingerprint)
            missing = tuple(sync for sync in run.sync if (training, sync) not in known)
            if missing:
                pending.append(replace(run, sync=missing))
        return pending

    def name(self, run: ReplayRun) -> str:
        """Name a replay's folder and its lines."""
        return f"{run.run_id(self.session.fingerprint)}  {run.label}"

    def finished_seconds(self) -> Iterable[float]:
        """Return the times of the replays of this log with this batch size."""
        mine = (self.session.fingerprint, self.session.settings.model.run.batch_size, "done")
        times = {
            each.run_id: each.seconds
            for each in read_replays(self.session.out)
            if (each.data_fingerprint, each.batch_size, each.status) == mine
        }
        return times.values()

    def begin(self) -> None:
        """Remove what a killed process has left of recorded replays."""
        for run_id in {each.run_id for each in read_replays(self.session.out)}:
            self._remove_snapshots(run_id)

    def _remove_snapshots(self, run_id: str) -> None:
        """Remove what takes the size of the tables and of the log."""
        for name in ("snapshots", "predictions"):
            shutil.rmtree(self.session.out / "runs" / run_id / name, ignore_errors=True)

    def make(self, run: ReplayRun) -> str:
        """Replay the log, also from a snapshot; return the AUC of each interval, and the speed."""
        results = self._replay(run)
        append_rows(self.session.out / REPLAYS_CSV, results)
        first = results[0]
        self._remove_snapshots(first.run_id)
        if first.status != "done":
            return f"{first.run_id}: {first.status}"
        aucs = ", ".join(f"{each.sync} {100 * each.auc:.2f}%" for each in results)
        return (
            f"{first.run_id}: AUC {aucs}; {first.ids_kept:,} ids kept, {first.seconds:.0f} s, "
            f"{first.rows_per_second:,.0f} rows/s"
        )

    def _replay(self, run: ReplayRun) -> list[ReplayResult]:
        session, settings = self.session, run.settings.run
        folder = session.out / "runs" / run.run_id(session.fingerprint)
        start = start_columns()
        resume = (folder / "config.json").exists()
        if folder.exists() and not resume:  # killed before it began
            shutil.rmtree(folder)
        try:
            with quiet_training():
                scores = replay_log(
                    session.settings.files,
                    run.features,
                    run.settings,
                    ReplaySettings(batch_days=run.batch_days, sync=run.sync),
                    out=folder,
                    resume=resume,
                    max_bad_fraction=session.settings.max_bad_fraction,
                )
        except Diverged:
            nothing = {"auc": math.nan, "log_loss": math.nan, "rows": 0}
            status, scores = "diverged", [{"sync": sync} | nothing for sync in run.sync]
            measured: JsonObject = dict.fromkeys(("events", "damaged", "seconds"), 0)
            measured |= {"rows_per_second": 0, "table": {"rows": []} | dict.fromkeys(_COUNTS, 0)}
        else:
            if scores[0]["auc"] == "":
                raise InputError(
                    "all scored events have one label; use a longer log, or `batch_days`"
                )
            status, measured = "done", read_json(folder / "replay.json")
        table = measured["table"]
        of_run = {
            "run_id": folder.name,
            "config_hash": run.config_hash(session.fingerprint),
            "status": status,
            "data": session.data_name,
            "data_fingerprint": session.fingerprint,
            **settings_columns(settings, settings.hyperparameters("table")),
            "embedding_dim": settings.embedding_dim,
            "batch_days": run.batch_days,
            "admit": _rule_text(run.features, lambda rules: rules.admit),
            "ttl": _rule_text(run.features, lambda rules: rules.ttl),
            **{k: measured[k] for k in ("events", "damaged", "seconds", "rows_per_second")},
            **{name: table[name] for name in _COUNTS},
            "ids_kept": sum(table["rows"]),
            **start,
            **machine_columns(hardware() | {"gpus": 0}),  # a replay uses the CPU
        }
        return [
            ReplayResult(
                sync=score["sync"],
                auc=score["auc"],
                log_loss=score["log_loss"],
                scored=score["rows"],
                **of_run,
            )
            for score in scores
        ]

    def write(self) -> Iterator[str]:
        """Write the table, and the figures that the results allow; yield the text to print."""
        session, experiment, results = self.session, self.experiment, self.results()
        finished = _finished(results)
        done = [result for mine in finished.values() for result in mine]
        events = f"{done[0].events:,} events, {done[0].scored:,} of them scored" if done else ""
        texts = session.texts(experiment) | {"data": session.describe_data(events)}
        measures = [_KEPT] if experiment.kind == "rules" else []
        measures += [_AUC, self.gain(3), _LOSS]
        notes = [f"{line.label}: {line.note}" for line in experiment.lines if line.note]
        yield self.show_table(results, measures, notes, texts)
        if not done:
            yield NO_FIGURE
            return
        draw = draw_intervals if experiment.kind == "sync" else draw_kept
        yield write_experiment_figure(session.out, draw(experiment, finished), experiment, texts)
        if experiment.kind != "sync":
            return
        try:
            figure = draw_over_time(experiment, finished, session.out / "runs")
        except InputError as error:  # the numbers of the table do not need the folders of the runs
            yield f"no figure over time: {error}"
            return
        yield write_experiment_figure(
            session.out,
            figure,
            experiment,
            texts,
            name=f"{experiment.name}_over_time",
            title=f"{experiment.title}: AUC over time",
            caption="AUC of the events of each hour or day, mean over the seeds.",
        )


def _rule_text(features: LogFeatures, value: Callable[[FieldRules], int]) -> str:
    """Format a rule of all columns: one number, or one for each column where they differ."""
    values = {name: value(rules) for name, rules in features.rules.items()}
    if len(set(values.values())) == 1:
        return str(next(iter(values.values())))
    return ", ".join(f"{name} {number}" for name, number in values.items())


Finished = Mapping[str, Sequence[ReplayResult]]
"""Label of a line -> its results that did not diverge, for the lines that have one."""


def _finished(results: LineResults) -> Finished:
    done = {
        label: [each for each in mine.values() if each.status == "done"]
        for label, mine in results.items()
    }
    return {label: mine for label, mine in done.items() if mine}


def _curve(x: Mapping[str, float], done: Finished, label: str = "") -> Curve:
    """The AUC of each seed at the x of each line; NaN where a seed has no finished replay."""
    aucs = {name: {each.seed: 100 * each.auc for each in done[name]} for name in x}
    seeds = sorted(set().union(*aucs.values()))
    runs = [[of_line.get(seed, math.nan) for of_line in aucs.values()] for seed in seeds]
    return Curve(label=label, x=tuple(x.values()), runs=runs)


def draw_intervals(experiment: LogExperiment, done: Finished) -> Figure:
    """Draw the AUC of each line, with the published numbers in a panel of their own."""
    labels = [line.label for line in experiment.lines]
    known = {x.label: x.published["auc"] for x in experiment.lines if "auc" in x.published}
    places = {label: labels.index(label) for label in done}
    published = Curve(label="", x=[*map(labels.index, known)], runs=[[*known.values()]])
    return draw_by_label(_curve(places, done), published, labels, axis=experiment.corner)


def draw_kept(experiment: LogExperiment, done: Finished) -> Figure:
    """Draw the AUC of each line against the ids that it keeps."""
    kept = {label: statistics.fmean(x.ids_kept for x in mine) for label, mine in done.items()}
    curve, (figure, (axes,)) = _curve(kept, done), panels(1)
    error_bars(axes, curve, style_of_many(0))
    for label, *spot in zip(kept, curve.x, curve.means(), strict=True):
        axes.annotate(label, spot, xytext=(4, -11), textcoords="offset points", fontsize=8)
    axes.set(xlabel=f"ids kept (labels: {experiment.corner})", ylabel="AUC, %")
    axes.margins(x=0.12, y=0.12)
    return figure


FEW = 0.05
"""Share of the usual number of events below which an hour or a day is left out of a figure."""

MOST_DAYS = 14
"""Days whose hours can be told apart in a figure; with more, it shows days."""


def draw_over_time(experiment: LogExperiment, done: Finished, runs: Path) -> Figure:
    """Draw the AUC of each hour of event time, or of each day; mean over the seeds.

    Raises:
        InputError: if a run's folder is missing, which holds the numbers.
    """
    days = max(len(_auc_over_time(runs, mine[0], "day")) for mine in done.values())
    period = "day" if days > MOST_DAYS else "hour"
    aucs = {
        label: [_auc_over_time(runs, each, period) for each in mine] for label, mine in done.items()
    }
    curves = [
        Curve(label=label, x=range(1, len(mine[0]) + 1), runs=mine) for label, mine in aucs.items()
    ]
    first = f"{period}s since the first scored event"
    return draw_epochs({f"AUC of each {period}, %": curves}, period=first)


def _auc_over_time(runs: Path, result: ReplayResult, period: str) -> list[float]:
    """Return the AUC of each period in %; NaN for one with one label, or with few events."""
    path = runs / result.run_id / f"auc_by_{period}.csv"
    if not path.exists():
        raise InputError(f"{path}: no such file; a figure over time needs the folders in runs/")
    with path.open(newline="", encoding="utf-8") as file:
        found = [row for row in csv.DictReader(file) if row["sync"] == result.sync]
    fewest = FEW * np.median([int(row["rows"]) for row in found])
    return [
        100 * float(row["auc"]) if row["auc"] and int(row["rows"]) >= fewest else np.nan
        for row in found
    ]
