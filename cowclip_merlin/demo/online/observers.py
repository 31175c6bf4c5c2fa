"""All that measures while the demo runs, and the numbers that come of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from cowclip_merlin.demo.measuring.failure import kill_cost, take_stock
from cowclip_merlin.demo.measuring.probes import Prober
from cowclip_merlin.demo.measuring.scoring import Scorer, auc_over_time
from cowclip_merlin.demo.measuring.sync_watch import Repeat, SyncWatch
from cowclip_merlin.demo.online.processes import DemoSettings, Logs, Processes
from cowclip_merlin.demo.online.report import Json, latency_summary, percentiles
from cowclip_merlin.online.events.features import load_features
from cowclip_merlin.online.logs.message_log import lag
from cowclip_merlin.online.logs.open_log import open_log

PROBE_EVERY = 1.0
"""Mean seconds from one probe to the next."""

SCORE_EVERY, SCORED = 0.5, 250
"""Seconds between two requests for scores, and impressions in each, about."""

_PARTS = 24  # of the time, for AUC over time
_RECENT = 10.0  # seconds whose AUC the status shows


class Observers:
    """The watch of the syncs, the probes, the scores and the memory.

    Args:
        settings: of the demo.
        logs: between the parts.
        features: features file of the stream.
        frozen: log that takes the syncs until `freeze`.
        probability: column with the true probability of a click.

    Attributes:
        watch: of the syncs.
        start: of the events, seconds since 1970.
        frozen_after: seconds after the start at which one server got its last sync.
    """

    def __init__(
        self, settings: DemoSettings, logs: Logs, features: Path, frozen: str, *, probability: str
    ) -> None:
        self._settings, self._logs, self._probability = settings, logs, probability
        self._features = load_features(features)
        self._impressions, self._examples = open_log(logs.impressions), open_log(logs.examples)
        self.watch = SyncWatch(open_log(logs.syncs), open_log(frozen, create=True))
        self.watch.start()
        self._threads: list[Repeat] = [self.watch]
        self._megabytes: dict[str, float] = {}
        self.start, self.frozen_after = 0.0, float("inf")
        self.prober: Prober | None = None
        self.scorer: Scorer | None = None

    def has_begun(self) -> bool:
        """Whether there is an impression."""
        return self._impressions.end()[0] > 0

    def begin(self, ports: Mapping[str, Sequence[int]]) -> None:
        """Begin to probe and to score.

        Args:
            ports: model -> ports of its servers.
        """
        # Each thread has its own connections.
        names = (self._logs.impressions, self._logs.actions, self._logs.examples)
        logs = [open_log(name) for name in names]
        online = next(iter(ports.values()))
        self.prober = Prober(self._features, *logs, self.watch, online, every=PROBE_EVERY)
        logs = [open_log(name) for name in names[:2]]
        one_in = max(1, round(self._settings.rate * SCORE_EVERY / SCORED))
        self.scorer = Scorer(
            self._features,
            *logs,
            ports,
            probability=self._probability,
            one_in=one_in,
            every=SCORE_EVERY,
        )
        self.start = time.time()
        for each in (self.prober, self.scorer):
            self._threads.append(each)
            each.start()

    @property
    def elapsed(self) -> float:
        """Seconds since the start of the events."""
        return time.time() - self.start

    def check(self) -> None:
        """Raise an error if one of the threads has failed.

        Raises:
            RuntimeError: with its traceback.
        """
        for each in self._threads:
            if each.failure:
                raise RuntimeError(f"a thread of the demo failed:\n{each.failure}")

    def freeze(self) -> None:
        """Give the server that is compared no more syncs; only the first call counts."""
        if self.frozen_after == float("inf"):
            self.watch.stop_copy()
            self.frozen_after = self.elapsed

    def measure(self, processes: Processes) -> None:
        """Note the memory that the processes have now, if it is the most so far."""
        for process in processes.all:
            most = max(process.megabytes, self._megabytes.get(process.name, 0.0))
            self._megabytes[process.name] = most

    def is_done(self) -> bool:
        """Whether the trainer has read all examples, and servers were told."""
        return bool(self.watch.syncs) and self._lag() == 0

    def stop(self) -> None:
        """End all threads."""
        for each in reversed(self._threads):
            each.stop()

    def lines(self) -> list[str]:
        """Return the state in some lines."""
        settings, examples = self._settings, self._examples.end()[0]
        produced = self._impressions.end()[0]
        sync = self.watch.syncs[-1]
        held, expired = (int(sync.info.get(name) or 0) for name in ("rows", "expired"))
        seconds = max(self.elapsed, 1e-3)
        return [
            f"online demo, {min(seconds, settings.seconds):.0f} of {settings.seconds:.0f} s",
            f"  producer  {produced:,} impressions, {produced / seconds:,.0f} a second",
            f"  joiner    {examples:,} examples",
            f"  trainer   {sync.trained:,} events trained, {self._lag():,} wait; "
            f"start {sync.generation}; {held:,} ids held, {expired:,} expired",
            f"  servers   last sync {time.time() - sync.seen:.1f} s ago{self._latency_words()}",
            f"  AUC       {self._auc_words()}",
        ]

    def _lag(self) -> int:
        return lag(self.watch.syncs[-1].position, self._examples.end())

    def _latency_words(self) -> str:
        totals = [each.total for each in self.prober.latencies] if self.prober else []
        if not totals:
            return ""
        p50, p95 = np.percentile(totals, [50, 95])
        return f"; click to served p50 {p50:.2f} s, p95 {p95:.2f} s of {len(totals)} probes"

    def _auc_words(self) -> str:
        now = time.time() - self._settings.window
        recent = [each for each in self.scorer.scored if each.time >= now - _RECENT]
        auc = auc_over_time(recent, self.scorer.clicked, start=now - _RECENT, end=now, parts=1)
        return ", ".join(f"{k} {100 * x:.2f} %" for k, x in auc.whole.items() if x == x)

    def result(self, *, killed: float | None) -> Json:
        """Return all numbers; call it after `stop`.

        Args:
            killed: when the trainer was killed, seconds since 1970.
        """
        self.scorer.read_clicks()
        settings, watch = self._settings, self.watch
        end = self.start + settings.seconds
        accounts = take_stock(
            self._features,
            self._impressions,
            open_log(self._logs.actions),
            self._examples,
            # One second each: times are whole seconds, and windows end with the next event.
            window=settings.window + 2,
            last=watch.syncs[-1] if watch.syncs else None,
        )
        cost = None
        if killed is not None:
            cost = kill_cost(watch, start=self.start, killed=killed, rate=settings.rate)
        last = end - settings.window - 5 * settings.delay  # later clicks may be missing
        whole = {"start": self.start, "end": last, "parts": _PARTS}
        compared = whole | {"start": self.start + self.frozen_after, "parts": 1}
        scored, clicked = self.scorer.scored, self.scorer.clicked
        return {
            "seconds": settings.seconds,
            "frozen_after": self.frozen_after,
            "accounts": asdict(accounts),
            "events_per_second": self._rates(end),
            "latency": latency_summary(self.prober.latencies, self.prober.given_up),
            "requests": percentiles(self.prober.requests, 50, 99)
            | {"unanswered": self.prober.unanswered + self.scorer.unanswered},
            "auc": _plain(auc_over_time(scored, clicked, **compared)._asdict()),
            "auc_over_time": _plain(auc_over_time(scored, clicked, **whole)._asdict()),
            "rows": self._rows(-1),
            "rows_over_time": self._rows_over_time(),
            "kill": asdict(cost) if cost else None,
            "memory": {name: round(size) for name, size in self._megabytes.items()},
            "probes": [
                each.as_dict() | {"began": each.began - self.start}
                for each in self.prober.latencies
            ],
        }

    def _rates(self, end: float) -> Json:
        """Events per second over the whole time, and those trained from the first sync on."""
        syncs = [sync for sync in self.watch.syncs if self.start <= sync.seen <= end]
        seconds = syncs[-1].seen - syncs[0].seen if len(syncs) > 1 else 0.0
        trained = (syncs[-1].trained - syncs[0].trained) / seconds if seconds else 0.0
        return {"produced": self._impressions.end()[0] / self._settings.seconds, "trained": trained}

    def _rows(self, index: int) -> Json:
        info = self.watch.syncs[index].info
        held, expired = (int(info.get(name) or 0) for name in ("rows", "expired"))
        return {"admitted": held + expired, "expired": expired, "held": held}

    def _rows_over_time(self) -> Json:
        syncs = self.watch.syncs
        rows = [self._rows(i) for i in range(len(syncs))]
        columns = {name: [each[name] for each in rows] for name in ("held", "expired")}
        return {"times": [sync.seen - self.start for sync in syncs]} | columns


def _plain(value: Json) -> Json:
    """The same value with None for NaN, as JSON has no NaN."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and value != value else value
