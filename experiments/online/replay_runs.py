"""Plan the replays of an experiment, one for each seed and set of rules, and run them."""

from __future__ import annotations

import io
import math
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace

from cowclip_merlin import compat
from cowclip_merlin.errors import Diverged, InputError
from cowclip_merlin.experiments.definitions import LogExperiment, ReplayLine
from cowclip_merlin.experiments.definitions.experiment import NEVER
from cowclip_merlin.experiments.online.log_runs import LogRuns
from cowclip_merlin.experiments.online.session import LogSession, hash_settings
from cowclip_merlin.experiments.results.result import ReplayResult, append_rows, read_replays
from cowclip_merlin.experiments.running.runner import (
    RunStart,
    hide_retracing_warnings,
    settings_columns,
)
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.events.values import parse_duration
from cowclip_merlin.online.replaying.replay_folder import replay_log
from cowclip_merlin.online.replaying.settings import ReplaySettings
from cowclip_merlin.online.settings import OnlineSettings
from cowclip_merlin.system.files import read_json
from cowclip_merlin.system.folders import REPLAYS_CSV
from cowclip_merlin.system.machine import hardware
from cowclip_merlin.tables.layout import FieldRules
from cowclip_merlin.types import Json, JsonObject

LineResults = Mapping[str, Mapping[int, ReplayResult]]
"""Label of a line -> seed -> its result, where there is one."""


@dataclass(frozen=True, kw_only=True)
class ReplayRun:
    """One replay of a plan.

    Attributes:
        label: labels of the lines that it is for.
        settings: of the model, with the seed.
        features: columns of the log, with the rules of the lines.
        batch_days: days to train before the first event is scored.
        sync: intervals to score.
    """

    label: str
    settings: OnlineSettings
    features: LogFeatures
    batch_days: float
    sync: tuple[str, ...]

    def config_hash(self, fingerprint: str) -> str:
        """Return a hash that is equal for replays that train the same.

        `fingerprint` is that of the log. Serving copies do not change the training, so `sync` is
        not a part of it.
        """
        return hash_settings(self.settings, self.features, self.batch_days, fingerprint)

    def run_id(self, fingerprint: str) -> str:
        """Return a readable name for the run's folder."""
        run = self.settings.run
        parts = (run.model, f"b{run.batch_size}", f"s{run.seed}", self.config_hash(fingerprint))
        return "-".join((*parts, *self.sync))


def plan_replays(session: LogSession, experiment: LogExperiment) -> list[ReplayRun]:
    """Return all replays of an experiment, with or without a result, seed by seed."""
    groups: dict[LogFeatures, list[ReplayLine]] = {}
    for line in experiment.lines:
        groups.setdefault(line_features(session.features, line), []).append(line)
    settings = session.settings
    return [
        ReplayRun(
            label=", ".join(line.label for line in lines),
            settings=replace(settings.model, run=replace(settings.model.run, seed=seed)),
            features=features,
            batch_days=settings.batch_days,
            sync=tuple(dict.fromkeys(line.sync for line in lines)),
        )
        for seed in range(1, settings.seeds + 1)
        for features, lines in groups.items()
    ]


def line_features(features: LogFeatures, line: ReplayLine) -> LogFeatures:
    """Return the columns with the rules of a line in place of those of the features file."""
    changed = {}
    if line.admit is not None:
        changed["admit"] = line.admit
    if line.ttl is not None:
        changed["ttl"] = 0 if line.ttl == NEVER else parse_duration(line.ttl, "ttl")
    columns = [replace(c, rules=replace(c.rules, **changed)) for c in features.categorical]
    return replace(features, categorical=tuple(columns))


def line_results(session: LogSession, experiment: LogExperiment) -> LineResults:
    """Return the existing results of an experiment."""
    found = {(x.config_hash, x.sync): x for x in read_replays(session.out)}
    results: dict[str, dict[int, ReplayResult]] = {line.label: {} for line in experiment.lines}
    hashes = {
        (run.features, run.settings.run.seed): run.config_hash(session.fingerprint)
        for run in plan_replays(session, experiment)
    }
    for line in experiment.lines:
        features = line_features(session.features, line)
        for (of, seed), training in hashes.items():
            if of == features and (training, line.sync) in found:
                results[line.label][seed] = found[training, line.sync]
    return results


_COUNTS = ("refused", "expired", "evicted")


def make_replay(run: ReplayRun, session: LogSession) -> list[ReplayResult]:
    """Make one replay and its results, also if it diverged.

    A replay that a signal stopped continues from its snapshot.

    Raises:
        InputError: if the log or a setting is wrong.
        Stopped: if a signal stops it.
    """
    folder = session.out / "runs" / run.run_id(session.fingerprint)
    start = RunStart.now()
    resume = (folder / "config.json").exists()
    if folder.exists() and not resume:  # killed before it began
        shutil.rmtree(folder)
    compat.release_models()
    try:
        with redirect_stdout(io.StringIO()), hide_retracing_warnings():  # replay.log has it
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
        scores = [{"sync": sync} | nothing for sync in run.sync]
        measured = dict.fromkeys(("events", "damaged", "seconds", "rows_per_second"), 0)
        of_run = _columns(run, session, start, "diverged", measured, _no_statistics())
    else:
        if scores[0]["auc"] == "":
            raise InputError("all scored events have one label; use a longer log, or `batch_days`")
        measured = read_json(folder / "replay.json")
        of_run = _columns(run, session, start, "done", measured, measured["table"])
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


def _no_statistics() -> JsonObject:
    return {"rows": []} | dict.fromkeys(_COUNTS, 0)


def _columns(
    run: ReplayRun,
    session: LogSession,
    start: RunStart,
    status: str,
    measured: Mapping[str, Json],
    table: Mapping[str, Json],
) -> JsonObject:
    """Return the columns that all intervals of a replay share."""
    settings = run.settings.run
    return {
        "run_id": run.run_id(session.fingerprint),
        "config_hash": run.config_hash(session.fingerprint),
        "status": status,
        "data": session.data_name,
        "data_fingerprint": session.fingerprint,
        **settings_columns(settings, settings.hyperparameters("table")),
        "embedding_dim": settings.embedding_dim,
        "batch_days": run.batch_days,
        "admit": rule_text(run.features, lambda rules: rules.admit),
        "ttl": rule_text(run.features, lambda rules: rules.ttl),
        **{k: measured[k] for k in ("events", "damaged", "seconds", "rows_per_second")},
        **{name: table[name] for name in _COUNTS},
        "ids_kept": sum(table["rows"]),
        **start.columns(hardware() | {"gpus": 0}),  # a replay uses the CPU
    }


def rule_text(features: LogFeatures, value: Callable[[FieldRules], int]) -> str:
    """Format a rule of all columns: one number, or one for each column where they differ."""
    values = {name: value(rules) for name, rules in features.rules.items()}
    if len(set(values.values())) == 1:
        return str(next(iter(values.values())))
    return ", ".join(f"{name} {number}" for name, number in values.items())


class ReplayRuns(LogRuns[ReplayRun]):
    """The replays of an experiment; each has a row in `replays.csv` for each sync interval."""

    def pending(self) -> Sequence[ReplayRun]:
        """Return the replays that have intervals without a result, with those intervals only."""
        known = {(each.config_hash, each.sync) for each in read_replays(self.session.out)}
        pending = []
        for run in plan_replays(self.session, self.experiment):
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
        mine = (self.session.fingerprint, self.session.settings.model.run.batch_size)
        found = [each for each in read_replays(self.session.out) if each.status == "done"]
        times = {
            each.run_id: each.seconds
            for each in found
            if (each.data_fingerprint, each.batch_size) == mine
        }
        return times.values()

    def begin(self) -> None:
        """Remove what a killed process has left of recorded replays."""
        for run_id in {each.run_id for each in read_replays(self.session.out)}:
            self._remove_snapshots(run_id)

    def make(self, run: ReplayRun) -> str:
        """Replay the log, also from a snapshot; return the AUC of each interval, and the speed."""
        results = make_replay(run, self.session)
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

    def _remove_snapshots(self, run_id: str) -> None:
        """Remove what takes the size of the tables and of the log."""
        for name in ("snapshots", "predictions"):
            shutil.rmtree(self.session.out / "runs" / run_id / name, ignore_errors=True)
