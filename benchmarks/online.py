"""Latency of online training: from a click to predictions that know it.

A generated stream goes through the joiner and the trainer to two servers, each a process. A probe
is an impression with ids that no event had before, and a click on it. It is known when both servers
answer it otherwise than other new ids. Meanwhile one server gets requests of one row.
"""

from __future__ import annotations

import math
import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from cowclip_merlin.demo.pipeline import LEAST_MINUTES, OWN, DemoSettings, Pipeline, make_logs
from cowclip_merlin.demo.processes import Processes
from cowclip_merlin.demo.report import percentiles
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.features import load_features
from cowclip_merlin.online.logs.open_log import open_log
from cowclip_merlin.settings import Settings, option
from cowclip_merlin.synthetic.drifting_stream import write_stream_features
from cowclip_merlin.system.machine import processor
from cowclip_merlin.types import JsonObject
from harness import Benchmark, markdown
from watching import Prober, Requester, SyncWatch, latency_summary

Thread = TypeVar("Thread", SyncWatch, Prober, Requester)

GOAL = 0.5
"""Seconds above the sync interval within which 95 of 100 probes are to be served."""
LEAST_PAUSE = 0.6
"""Seconds between two probes, at least."""
WARM_UP = 5.0
"""Seconds of events before the first probe."""


@dataclass(frozen=True, kw_only=True)
class LatencySettings(Settings):
    """What is measured."""

    sync_every: tuple[float, ...] = option(
        (0.2, 1.0), "seconds between two syncs", nargs="+", above=0
    )
    seconds: int = option(60, "of probes, for each interval", at_least=int(60 * LEAST_MINUTES))
    rate: float = option(2000.0, "impressions per second", above=0)
    cores: int = option(2, "cores that all processes share", at_least=1)
    redis: bool = option(False, "logs in a Redis server that is started, instead of in files")

    def __post_init__(self) -> None:
        """Check each value, and that there are so many cores."""
        super().__post_init__()
        if self.cores > (os.cpu_count() or 1):
            raise InputError(f"--cores {self.cores}: this machine has {os.cpu_count()}")


def measure(settings: LatencySettings) -> JsonObject:
    """Measure each interval in a pipeline of its own."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: settings.cores])
    results = []
    for sync_every in settings.sync_every:
        demo = DemoSettings(
            minutes=settings.seconds / 60,
            rate=settings.rate,
            sync_every=sync_every,
            redis=OWN if settings.redis else None,
        )
        with TemporaryDirectory() as folder:
            results.append(measure_latency(demo, Path(folder)))
    return {
        "what": "click to served prediction",
        "hardware": processor(),
        "results": results,
        "cores_used": settings.cores,
        "redis": settings.redis,
        "rate": settings.rate,
    }


def measure_latency(settings: DemoSettings, work: Path) -> JsonObject:
    """Send probes through a pipeline with two servers, until the stream has ended."""
    features = work / "features.yaml"
    write_stream_features(features, seconds_per_day=settings.seconds / settings.days)
    with ExitStack() as stack:
        processes = stack.enter_context(Processes(work / "logs"))
        logs = make_logs(settings, processes, work)
        watch = _started(SyncWatch(open_log(logs.syncs)), stack)
        pipeline = Pipeline(settings, processes, logs, features, work)
        pipeline.start(servers=2)
        pipeline.wait_for_servers()
        producer = pipeline.start_producer()
        begun = lambda: bool(watch.syncs) and watch.syncs[-1].trained > 0  # noqa: E731
        processes.wait_until("the first events", begun)
        time.sleep(WARM_UP)
        columns = load_features(features)
        opened = [open_log(name) for name in (logs.impressions, logs.actions, logs.examples)]
        every = pause_between(settings.sync_every) / 2
        prober = _started(Prober(columns, *opened, watch, pipeline.ports, every=every), stack)
        shown = open_log(logs.impressions)
        requester = _started(Requester(columns, shown, pipeline.ports[0]), stack)
        until = time.monotonic() + settings.seconds - 2 * WARM_UP
        while time.monotonic() < until and producer.is_running:
            processes.check()
            time.sleep(0.1)
        for each in (prober, requester, watch):
            each.stop()
            if each.failure:
                raise RuntimeError(each.failure)
    return {
        "sync_every": settings.sync_every,
        "latency": latency_summary(prober.latencies, prober.given_up),
        "requests": percentiles(requester.seconds, 50, 99)
        | {"count": len(requester.seconds), "unanswered": requester.unanswered},
    }


def pause_between(sync_every: float) -> float:
    """Return the longest pause between two probes: whole intervals, so that all moments are even.

    >>> pause_between(0.2), pause_between(1.0)
    (0.6000000000000001, 1.0)
    """
    return math.ceil(LEAST_PAUSE / sync_every - 1e-9) * sync_every


def _started(thread: Thread, stack: ExitStack) -> Thread:
    """Start a thread that ends with the block."""
    stack.callback(thread.stop)
    thread.start()
    return thread


def text(result: JsonObject) -> str:
    """A line for each interval."""
    rows = []
    for each in result["results"]:
        seconds, requests = each["latency"]["seconds"], each["requests"]
        total = seconds["total"]
        stages = [seconds[name]["p50"] for name in ("join", "train", "push", "apply")]
        times = [f"{x:.2f}" for x in (*stages, total["p50"], total["p95"])]
        probes, given_up = each["latency"]["probes"], each["latency"]["given_up"]
        # Those given up have no time, but are late.
        served = total["p95"] <= each["sync_every"] + GOAL and 19 * given_up <= probes
        good = "yes" if served else "no"
        milliseconds = [f"{1e3 * requests[p]:.1f}" for p in ("p50", "p99")]
        first = [f"{each['sync_every']:g}", str(probes), str(given_up)]
        rows.append([*first, *times, good, *milliseconds])
    head = ["sync every, s", "probes", "given up", "join", "train", "push", "apply", "p50, s"]
    head += ["p95, s", f"p95 <= interval + {GOAL} s", "request p50, ms", "p99, ms"]
    return markdown(head, "r" * len(head), rows)


BENCHMARK = Benchmark(about=__doc__, settings=LatencySettings, measure=measure, text=text)

if __name__ == "__main__":
    BENCHMARK.main()
