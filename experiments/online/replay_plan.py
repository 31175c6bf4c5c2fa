"""Plan the replays of an experiment: one for each seed and set of rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cowclip_merlin.experiments.definitions import LogExperiment, ReplayLine
from cowclip_merlin.experiments.definitions.log_experiment import NEVER
from cowclip_merlin.experiments.online.config_hash import hash_settings
from cowclip_merlin.experiments.online.session import LogSession
from cowclip_merlin.experiments.results.replay_result import ReplayResult, read_replays
from cowclip_merlin.online.events.durations import parse_duration
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.settings import OnlineSettings

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
