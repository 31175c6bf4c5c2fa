"""Run a pipeline, kill its parts, and take stock."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cowclip_merlin.demo.measuring.failure import take_stock
from cowclip_merlin.demo.measuring.requests import Requester
from cowclip_merlin.demo.measuring.sync_watch import Sync, SyncWatch
from cowclip_merlin.demo.online.brokers import Logs, make_logs
from cowclip_merlin.demo.online.pipeline import Pipeline
from cowclip_merlin.demo.online.processes import Process, Processes
from cowclip_merlin.demo.online.settings import OWN, DemoSettings
from cowclip_merlin.online.events.features_file import load_features
from cowclip_merlin.online.logs.message_log import LogUnavailable
from cowclip_merlin.online.logs.open_log import open_log
from cowclip_merlin.synthetic.drifting_stream import write_stream_features
from online_service.offline import answers, offline_answers, requests_from, wait_for_version

Result = dict[str, Any]

MOST_DIFFERENCE = 1e-6
"""Between the predictions of two servers, or of a server and the model."""

COMPARED = 10_000
"""Requests that are compared."""

_MOMENT = (2.0, 8.0)  # seconds in which a kill lies
_MINUTES = 5.0  # of the stream for each kill
_REDIS_AWAY = 1.0  # seconds without Redis
_LONGEST = 600.0  # seconds in which everything must be served again after a kill


@dataclass(frozen=True, kw_only=True)
class FailureSettings:
    """What is killed.

    Attributes:
        kills: how many.
        rate: impressions per second.
        seed: of the moments and of the stream.
        redis: whether the logs are in Redis, which is killed, too.
    """

    kills: int
    rate: float
    seed: int
    redis: bool


class Failures:
    """A running pipeline whose parts are killed.

    Args:
        settings: what is killed.
        work: empty folder.
        stack: ends what is started.
    """

    def __init__(self, settings: FailureSettings, work: Path, stack: ExitStack) -> None:
        self._settings, self._work = settings, work
        self._random = random.Random(settings.seed)
        demo = DemoSettings(
            minutes=_MINUTES * (settings.kills + 2),  # longer than needed: it is ended at last
            rate=settings.rate,
            seed=settings.seed,
            redis=OWN if settings.redis else None,
        )
        self._window, self._features = demo.window, work / "features.yaml"
        write_stream_features(self._features, seconds_per_day=demo.seconds / demo.days)
        self.processes = stack.enter_context(Processes(work / "logs"))
        self.logs: Logs = make_logs(demo, self.processes, work)
        self.watch = SyncWatch(open_log(self.logs.syncs))
        stack.callback(self.watch.stop)
        self.watch.start()
        self.pipeline = Pipeline(demo, self.processes, self.logs, self._features, work)
        self._columns = load_features(self._features)

    def begin(self, stack: ExitStack) -> None:
        """Start all parts, and ask the second server all the time."""
        self.pipeline.start(servers=2)
        self.pipeline.wait_for_servers()
        self._producer = self.pipeline.start_producer()
        shown = open_log(self.logs.impressions)
        self.processes.wait_until("events", lambda: self._trained() > 5 * self._settings.rate)
        self.requester = Requester(self._columns, shown, self.pipeline.ports[1], every=0.05)
        stack.callback(self.requester.stop)
        self.requester.start()

    def kill(self, number: int) -> Result:
        """Kill one part, wait until both servers have what came after it, and compare them."""
        victim = self._victims()[number % len(self._victims())]
        after = self._random.uniform(*_MOMENT)
        time.sleep(after)
        self._check()
        killed = time.time()
        victim.kill()
        if victim.name == "redis":
            time.sleep(_REDIS_AWAY)
        victim.start()
        sync = self._served_after(killed)
        wait_for_version(self.pipeline.ports, (sync.generation, sync.seq), self._check)
        back = time.time() - killed
        difference = self._compare_servers()
        return {"killed": victim.name, "after": after, "back": back, "difference": difference}

    def finish(self) -> Result:
        """End the stream and the trainer, and compare with its last snapshot."""
        self._producer.end()
        self._producer.wait()
        last = self._last_sync()
        trainer = self.pipeline.trainer
        trainer.end()
        trainer.wait(120)
        last = self._last_sync()  # the trainer's last one
        ports = self.pipeline.ports
        wait_for_version(ports, (last.generation, last.seq), self._check)
        rows = self._requests()
        served = [answers(port, rows) for port in ports]
        offline = offline_answers(self._work / "run", rows)
        self.requester.stop()
        self._check()
        logs = [open_log(name) for name in (self.logs.impressions, self.logs.actions)]
        accounts = take_stock(
            self._columns, *logs, open_log(self.logs.examples), window=self._window + 2, last=last
        )
        return {
            "offline_difference": max(float(np.abs(x - offline).max()) for x in served),
            "requests_compared": len(rows),
            "accounts": asdict(accounts),
            "answered": len(self.requester.seconds),
            "unanswered": self.requester.unanswered,
        }

    def _victims(self) -> list[Process]:
        parts = [self.pipeline.trainer, self.pipeline.servers[0], self.pipeline.joiner]
        return parts + [p for p in self.processes.all if p.name == "redis"]

    def _served_after(self, killed: float) -> Sync:
        """Wait for a sync with examples that were joined after the kill."""
        self.processes.wait_until("the logs", self._logs_answer)
        examples = open_log(self.logs.examples)
        first = self._end_of(examples)
        self._wait(lambda: self._end_of(examples) > first + self._settings.rate)
        place = self._end_of(examples)
        self._wait(lambda: self.watch.first_with(place) is not None)
        return self.watch.first_with(place)

    def _compare_servers(self) -> float:
        """Return the largest difference between both servers while the trainer is paused."""
        rows = self._requests()
        with self.pipeline.trainer.paused():
            last = self._last_sync()
            wait_for_version(self.pipeline.ports, (last.generation, last.seq), self._check)
            first, second = (answers(port, rows) for port in self.pipeline.ports)
        return float(np.abs(first - second).max())

    def _requests(self) -> list[dict[str, Any]]:
        shown = open_log(self.logs.impressions)
        return requests_from(shown, self._columns, COMPARED, self._random.randrange(2**32))

    def _last_sync(self) -> Sync:
        """Return the last sync once the watch has read all that is there."""
        log = open_log(self.logs.syncs)
        end = self._end_of(log)
        self._wait(lambda: self.watch.position[0] >= end)
        return self.watch.syncs[-1]

    def _logs_answer(self) -> bool:
        try:
            open_log(self.logs.examples).end()
        except LogUnavailable:
            return False
        return True

    def _end_of(self, log: Any) -> int:
        """Return the number of messages of a log; waits for its server."""
        while True:
            try:
                return log.end()[0]
            except LogUnavailable:
                self._check()
                time.sleep(0.1)

    def _trained(self) -> int:
        return self.watch.syncs[-1].trained if self.watch.syncs else 0

    def _wait(self, condition: Any) -> None:
        self.processes.wait_until("events after a kill to be served", condition, _LONGEST)
        self._check()

    def _check(self) -> None:
        """Raise an error if a process or a thread has failed."""
        self.processes.check()
        threads = [self.watch, getattr(self, "requester", None)]
        for thread in filter(None, threads):
            if thread.failure:
                raise RuntimeError(thread.failure)


def measure_failures(settings: FailureSettings, work: Path) -> Result:
    """Kill parts of a pipeline; return what was seen.

    Args:
        settings: what is killed.
        work: empty folder for the files.

    Raises:
        InputError: a part has failed by itself, or did not come back.
    """
    with ExitStack() as stack:
        failures = Failures(settings, work, stack)
        failures.begin(stack)
        kills = [failures.kill(number) for number in range(settings.kills)]
        return {"kills": kills} | failures.finish()
