"""`cowclip online demo`: start all parts, watch them, kill the trainer once, and report."""

from __future__ import annotations

import json
import signal
import time
from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from types import FrameType

import numpy as np

from cowclip_merlin.demo.pipeline import DemoSettings, Logs, Pipeline, ask, make_logs
from cowclip_merlin.demo.processes import Processes
from cowclip_merlin.demo.report import (
    BEST,
    FROZEN,
    ONLINE,
    StatusBlock,
    draw,
    percentiles,
    table_text,
    take_stock,
)
from cowclip_merlin.errors import InputError
from cowclip_merlin.metrics import roc_auc
from cowclip_merlin.online.events.features import load_features
from cowclip_merlin.online.logs.message_log import LogUnavailable
from cowclip_merlin.online.logs.open_log import open_log
from cowclip_merlin.synthetic.drifting_stream import PROBABILITY, write_stream_features
from cowclip_merlin.system.files import write_json
from cowclip_merlin.system.machine import processor
from cowclip_merlin.system.signals import signal_handler
from cowclip_merlin.tables.snapshot import numbers
from cowclip_merlin.types import JsonObject

SERVERS = 2
RESULT, FIGURE = "demo.json", "demo.svg"

_LONGEST_REST = 120.0
"""Seconds after the last event in which the other parts may finish it."""
_QUIET = 3.0  # seconds without anything new after which everything is done
_LOOK_EVERY = 0.5
_SCORED = 250  # impressions at a look, about
_MOST = 1000  # impressions in a request
_PARTS = 24  # of the time, for AUC over time
_RECENT = 10.0  # seconds whose AUC the status shows


class Scores:
    """Impressions that models scored at the same moment, before their clicks were known."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._keys: list[Hashable] = []
        self._scores: dict[str, list[float]] = {name: [] for name in (ONLINE, FROZEN, BEST)}
        self.clicked: set[Hashable] = set()  # keys of all clicks so far

    def add(self, keys: Sequence[Hashable], scores: Mapping[str, Sequence[float]]) -> None:
        """Add impressions, with the scores of each model."""
        self._times += [time.time()] * len(keys)
        self._keys += keys
        for name, values in scores.items():
            self._scores[name] += values

    def count(self, start: float, end: float) -> int:
        """Return how many impressions were scored from a time on, and before another one."""
        first, last = self._between(start, end)
        return last - first

    def auc(self, start: float, end: float) -> dict[str, float | None]:
        """Return the AUC of each model; None with fewer than 20 of one class, which say nothing."""
        first, last = self._between(start, end)
        labels = np.array([key in self.clicked for key in self._keys[first:last]], np.int8)
        few = min(int(labels.sum()), len(labels) - int(labels.sum())) < 20
        return {
            name: None if few else roc_auc(labels, np.array(values[first:last]))
            for name, values in self._scores.items()
        }

    def _between(self, start: float, end: float) -> tuple[int, int]:
        """The places of the first impression from a time on, and of that from another one on."""
        return bisect_left(self._times, start), bisect_left(self._times, end)


class Watch:
    """Looks at the parts from time to time, and remembers the numbers.

    The log `frozen` takes the syncs until `freeze`, `frozen_after` seconds after the `start` of the
    events.
    """

    def __init__(self, settings: DemoSettings, logs: Logs, features: Path, frozen: str) -> None:
        self._settings, self._features = settings, load_features(features)
        opened = (logs.impressions, logs.actions, logs.examples, logs.syncs)
        self._impressions, self._actions, self._examples, self._syncs = map(open_log, opened)
        self._frozen = open_log(frozen, create=True)
        self._relayed, self._acted = self._syncs.start(), self._actions.start()
        self._shown = self._impressions.start()
        self._ports: Mapping[str, Sequence[int]] = {}
        self._looks = self._unanswered = 0
        self._examples_end, self._grew = self._examples.start(), 0.0
        self._scores = Scores()
        self._samples: list[JsonObject] = []  # of the model that the first server has
        self._requests: JsonObject = {}
        self._megabytes: dict[str, float] = {}
        self.start, self.frozen_after = 0.0, float("inf")

    def has_begun(self) -> bool:
        """Whether there is an impression."""
        return self._impressions.end()[0] > 0

    def begin(self, ports: Mapping[str, Sequence[int]]) -> None:
        """Begin to score with the servers of each model, at these ports."""
        self._ports, self._shown, self.start = ports, self._impressions.end(), time.time()

    @property
    def elapsed(self) -> float:
        """Seconds since the start of the events."""
        return time.time() - self.start

    def freeze(self) -> None:
        """Give the server that is compared no more syncs; only the first call counts."""
        if self.frozen_after == float("inf"):
            self.frozen_after = self.elapsed

    def relay(self) -> None:
        """Give the syncs to the server that is compared, unless it is frozen."""
        while self.frozen_after == float("inf"):
            messages = []
            with suppress(LogUnavailable):  # it may answer at the next look
                messages = self._syncs.read(self._relayed, most=64)
            if not messages:
                return
            self._frozen.append([message.value for message in messages])
            self._relayed = messages[-1].after

    def look(self, processes: Processes) -> None:
        """Relay, score the newest impressions, read the clicks, and ask for the status.

        Raises:
            LogUnavailable: a log does not answer; the next look may succeed.
        """
        for process in processes.all:
            most = max(process.megabytes, self._megabytes.get(process.name, 0.0))
            self._megabytes[process.name] = most
        self._ask_for_status()
        self.relay()
        self._score()
        self.read_clicks()

    def _ask_for_status(self) -> None:
        status = ask(self._ports[ONLINE][0], "/v1/status")
        if status is None:
            self._unanswered += 1
            return
        self._requests, model, sync = status["requests"], status["model"], status["sync"]
        if model is None or sync["age_seconds"] is None:  # it has loaded a snapshot, no more
            return
        sample = {name: model[name] for name in ("generation", "trained")}
        sample |= {name: int(sync[name] or 0) for name in ("rows", "expired", "trainer_lag")}
        sample |= {"time": status["time"], "synced": status["time"] - sync["age_seconds"]}
        age = sync["event_age_seconds"] if model["trained"] else None
        self._samples.append(sample | {"event_age": age})

    def _score(self) -> None:
        values: list[bytes] = []
        while messages := self._impressions.read(self._shown, most=4096):
            self._shown = messages[-1].after
            values += [message.value for message in messages]
        one_in = max(1, round(self._settings.rate * _LOOK_EVERY / _SCORED))
        rows = [json.loads(value) for value in values[::one_in][-_MOST:]]
        if not rows:
            return
        inputs = {"events": [{name: row[name] for name in self._features.inputs} for row in rows]}
        scores = {BEST: [float(row[PROBABILITY]) for row in rows]}
        self._looks += 1
        for name, ports in self._ports.items():
            answer = ask(ports[self._looks % len(ports)], "/v1/predict", inputs)
            if answer is None:
                self._unanswered += 1
                return
            scores[name] = answer["predictions"]
        self._scores.add([row[self._features.key] for row in rows], scores)

    def read_clicks(self) -> None:
        """Read all clicks that are there."""
        while messages := self._actions.read(self._acted, most=4096):
            self._acted = messages[-1].after
            self._scores.clicked.update(
                json.loads(message.value)[self._features.key] for message in messages
            )

    def is_done(self) -> bool:
        """Whether the trainer has said, since the last example came, that none waits for it."""
        end = self._examples.end()
        if end != self._examples_end:
            self._examples_end, self._grew = end, time.time()
        if not self._samples or end == self._examples.start():
            return False
        return self._samples[-1]["trainer_lag"] == 0 and self._samples[-1]["synced"] > self._grew

    def lines(self) -> list[str]:
        """Return the state in some lines."""
        settings, produced = self._settings, self._impressions.end()[0]
        seconds, now = max(self.elapsed, 1e-3), time.time()
        lines = [
            f"online demo, {min(seconds, settings.seconds):.0f} of {settings.seconds:.0f} s",
            f"  producer  {produced:,} impressions, {produced / seconds:,.0f} a second",
            f"  joiner    {self._examples.end()[0]:,} examples",
        ]
        if self._samples:
            x = self._samples[-1]
            age = "-" if x["event_age"] is None else f"{x['event_age']:.1f} s"
            lines += [
                f"  trainer   {x['trained']:,} events trained, {x['trainer_lag']:,} wait; "
                f"start {x['generation']}; {x['rows']:,} ids held, {x['expired']:,} expired",
                f"  servers   last sync {now - x['synced']:.1f} s ago; newest event {age} old",
            ]
        auc = self._scores.auc(now - settings.window - _RECENT, now - settings.window)
        known = {name: 100 * value for name, value in auc.items() if value is not None}
        lines.append("  AUC       " + ", ".join(f"{k} {x:.2f} %" for k, x in known.items()))
        return lines

    def result(self, *, killed: float | None, snapshot: int) -> JsonObject:
        """Return all numbers, after a kill of the trainer and its start from a snapshot."""
        self.read_clicks()
        settings, start = self._settings, self.start
        # Later clicks may be missing.
        last = start + settings.seconds - settings.window - 5 * settings.delay
        frozen = start + self.frozen_after
        edges = np.linspace(start, last, _PARTS + 1)
        # One second each: times are whole seconds, and windows end with the next event.
        logs = (self._impressions, self._actions, self._examples)
        accounts = take_stock(self._features, *logs, window=settings.window + 2)
        models = [x | {"time": x["time"] - start} for x in self._samples]
        inside = [x for x in models if x["time"] <= settings.seconds]
        if not inside:
            raise InputError(f"no sync came in {settings.seconds:.0f} s; see logs/trainer.log")
        ages = [x["event_age"] for x in inside if x["event_age"] is not None]
        kill = killed and kill_cost(
            self._samples, start=start, killed=killed, snapshot=snapshot, rate=settings.rate
        )
        asked = {name: self._requests.get(f"{name}_milliseconds") for name in ("p50", "p99")}
        return {
            "seconds": settings.seconds,
            "frozen_after": self.frozen_after,
            "accounts": asdict(accounts) | {"trained": models[-1]["trained"]},
            "events_per_second": {
                "produced": self._impressions.end()[0] / settings.seconds,
                "trained": _rate(inside),
            },
            "event_age": percentiles(ages, 50, 95),
            "requests": asked | {"unanswered": self._unanswered},
            "auc": {
                "whole": self._scores.auc(frozen, last),
                "impressions": self._scores.count(frozen, last),
            },
            "auc_over_time": {
                "times": ((edges[:-1] + edges[1:]) / 2 - start).tolist(),
                "parts": [self._scores.auc(*each) for each in pairwise(edges)],
            },
            "models": models,
            "kill": kill,
            "memory": {name: round(size) for name, size in self._megabytes.items()},
        }


def kill_cost(
    models: Sequence[JsonObject], *, start: float, killed: float, snapshot: int, rate: float
) -> JsonObject | None:
    """Return what a kill of the trainer cost; None if no sync came before or after it.

    `models` are those that a server had, `snapshot` the events in the snapshot with which it
    started again. With no more than a second's events waiting, it has caught up.
    """
    before = [x for x in models if x["synced"] <= killed]
    after = [x for x in models if before and x["generation"] > before[-1]["generation"]]
    if not before or not after:
        return None
    caught_up = [x["synced"] for x in after if x["trainer_lag"] <= rate]
    return {
        "killed_after": killed - start,
        "without_syncs": after[0]["synced"] - before[-1]["synced"],
        "caught_up_after": caught_up[0] - killed if caught_up else None,
        "retrained": max(before[-1]["trained"] - snapshot, 0),
    }


def _rate(models: Sequence[JsonObject]) -> float:
    """Events trained per second, from the first sync on."""
    seconds = models[-1]["time"] - models[0]["time"]
    return (models[-1]["trained"] - models[0]["trained"]) / seconds if seconds else 0.0


class Demo:
    """One run of the demo, in a new or empty folder."""

    def __init__(
        self, settings: DemoSettings, work: Path, status: StatusBlock | None = None
    ) -> None:
        self._settings, self._work = settings, work
        self._status = status or StatusBlock()
        self._killed: float | None = None
        self._snapshot = 0

    def run(self) -> JsonObject:
        """Run to the end, and return the numbers; all processes have ended then.

        Raises:
            InputError: the folder is not empty, or a part has failed.
        """
        _make_folder(self._work)
        with ExitStack() as stack:
            processes = stack.enter_context(Processes(self._work / "logs"))
            stack.callback(self._status.clear)
            pipeline, watch = self._start(processes)
            self._watch(processes, pipeline, watch)
            self._finish(processes, watch)
            self._status.clear()
            return self._result(watch)

    def _start(self, processes: Processes) -> tuple[Pipeline, Watch]:
        """Start all parts, and wait until the first events come."""
        settings, features = self._settings, self._work / "features.yaml"
        self._status.say(f"starting joiner, trainer and {SERVERS + 1} servers: {self._work}")
        write_stream_features(features, seconds_per_day=settings.seconds / settings.days)
        logs = make_logs(settings, processes, self._work)
        frozen = str(self._work / "messages" / "frozen")
        watch = Watch(settings, logs, features, frozen)
        pipeline = Pipeline(settings, processes, logs, features, self._work)
        pipeline.start(servers=SERVERS)
        frozen_port = pipeline.start_server("server-frozen", frozen)
        pipeline.wait_for_servers(watch.relay)
        pipeline.start_producer()
        processes.wait_until("the first event", watch.has_begun)
        watch.begin({ONLINE: pipeline.ports[:SERVERS], FROZEN: [frozen_port]})
        return pipeline, watch

    def _watch(self, processes: Processes, pipeline: Pipeline, watch: Watch) -> None:
        """Show the state until the last event; freeze a server and kill the trainer meanwhile."""
        settings = self._settings
        while (elapsed := watch.elapsed) < settings.seconds:
            if elapsed >= settings.freeze_after:
                watch.freeze()
            if elapsed >= settings.kill_after and self._killed is None:
                self._killed = time.time()
                pipeline.trainer.kill()
                self._snapshot = max(numbers(self._work / "run" / "snapshots"), default=0)
                self._status.say(f"{elapsed:.0f} s: kill -9 of the trainer; starting it again")
                pipeline.trainer.start()
            self._look(processes, watch)

    def _finish(self, processes: Processes, watch: Watch) -> None:
        """Wait until the trainer has read all examples, for some time at most."""
        until = quiet_since = time.monotonic()
        until += _LONGEST_REST
        while time.monotonic() < until and time.monotonic() - quiet_since < _QUIET:
            is_done = False
            with suppress(LogUnavailable):
                is_done = watch.is_done()
            if not is_done:
                quiet_since = time.monotonic()
            self._look(processes, watch)

    def _look(self, processes: Processes, watch: Watch) -> None:
        processes.check()
        with suppress(LogUnavailable):  # shown again when its server answers
            watch.look(processes)
            self._status.show(watch.lines())
        time.sleep(_LOOK_EVERY)

    def _result(self, watch: Watch) -> JsonObject:
        """Write the numbers and the figure; return the numbers."""
        settings = asdict(self._settings)
        # An address may hold a password.
        settings |= {name: settings[name] is not None for name in ("redis", "kafka")}
        found = watch.result(killed=self._killed, snapshot=self._snapshot)
        result = {"settings": settings} | found
        write_json(self._work / RESULT, result | {"hardware": processor()})
        draw(result, self._work / FIGURE)
        return result


def run_demo(settings: DemoSettings, work: str | Path) -> str:
    """Run the demo in a new or empty folder; return what it shows at the end."""
    work = Path(work)
    with signal_handler([signal.SIGHUP], _hang_up):
        result = Demo(settings, work).run()
    return f"{table_text(result)}\n\nnumbers: {work / RESULT}, figure: {work / FIGURE}"


def _hang_up(number: int, _: FrameType | None) -> None:
    """End in order when the terminal is closed."""
    raise SystemExit(128 + number)


def _make_folder(work: Path) -> None:
    work.mkdir(parents=True, exist_ok=True)
    there = next(work.iterdir(), None)
    if there is not None:
        raise InputError(f"{work}: holds {there.name!r}; remove it, or use another --work")
