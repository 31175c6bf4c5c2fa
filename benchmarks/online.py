"""Latency of online training: from a click to predictions that know it.

    python benchmarks/online.py [--sync-every 0.2,1] [--seconds 60] [--rate 2000] [--cores 2]
        [--redis] [--json FILE] [--overwrite]

A generated stream goes through the joiner and the trainer to two servers, each a process. A probe
is an impression with ids that no event had before, and a click on it. It is known when both servers
answer it otherwise than other new ids. Meanwhile one server gets requests of one row.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from cowclip_merlin.checks import check_at_least_one, check_positive
from cowclip_merlin.demo.measuring.probes import Prober
from cowclip_merlin.demo.measuring.server_client import Requester
from cowclip_merlin.demo.measuring.sync_watch import SyncWatch
from cowclip_merlin.demo.online.pipeline import Pipeline
from cowclip_merlin.demo.online.processes import (
    LEAST_MINUTES,
    OWN,
    DemoSettings,
    Processes,
    make_logs,
)
from cowclip_merlin.demo.online.report import latency_summary, percentiles
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.features import load_features
from cowclip_merlin.online.logs.open_log import open_log
from cowclip_merlin.settings import option
from cowclip_merlin.synthetic.drifting_stream import write_stream_features
from cowclip_merlin.system.machine import processor
from cowclip_merlin.types import JsonObject
from harness.benchmark import Benchmark
from harness.tables import markdown

Result = JsonObject
Thread = TypeVar("Thread", SyncWatch, Prober, Requester)

GOAL = 0.5
"""Seconds above the sync interval within which 95 of 100 probes are to be served."""

WARM_UP = 5.0
"""Seconds of events before the first probe."""


@dataclass(frozen=True, kw_only=True)
class LatencySettings:
    """What is measured.

    Attributes:
        sync_every: seconds between two syncs.
        seconds: of probes, for each of them.
        rate: impressions per second.
        cores: of the processor that all processes share.
        redis: keep the logs in a Redis server that is started here, instead of in files.

    Raises:
        InputError: a number is out of range, or there are not so many cores.
    """

    sync_every: tuple[float, ...] = option((0.2, 1.0), "seconds between two syncs", nargs="+")
    seconds: int = option(60, "seconds of probes")
    rate: float = option(2000.0, "impressions per second")
    cores: int = option(2, "cores that all processes share")
    redis: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be measured."""
        check_positive({"--sync-every": min(self.sync_every), "--rate": self.rate})
        check_at_least_one({"--cores": self.cores})
        if self.seconds < 60 * LEAST_MINUTES:
            raise InputError(f"--seconds is {self.seconds}; give {60 * LEAST_MINUTES:.0f} or more")
        if self.cores > (os.cpu_count() or 1):
            raise InputError(f"--cores {self.cores}: this machine has {os.cpu_count()}")


def add_options(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--redis", action="store_true", help="logs in Redis instead of files")


def measure(settings: LatencySettings) -> Result:
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
    facts = {"cores_used": settings.cores, "redis": settings.redis, "rate": settings.rate}
    return {
        "what": "click to served prediction",
        "hardware": processor(),
        "results": results,
    } | facts


def measure_latency(settings: DemoSettings, work: Path) -> Result:
    """Send probes through a pipeline with two servers, until the stream has ended.

    Args:
        settings: of the pipeline.
        work: empty folder for its files.

    Raises:
        InputError: a part has failed.
        RuntimeError: a thread of this process has failed.
    """
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
        processes.wait_until("the first events", lambda: _has_begun(watch))
        time.sleep(WARM_UP)
        columns = load_features(features)
        names = (logs.impressions, logs.actions, logs.examples)
        opened = [open_log(name) for name in names]
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


def pause_between(sync_every: float, *, least: float = 0.6) -> float:
    """Return the longest pause between two probes: whole intervals, so that all moments are even.

    >>> pause_between(0.2), pause_between(1.0)
    (0.6000000000000001, 1.0)
    """
    return math.ceil(least / sync_every - 1e-9) * sync_every


def _has_begun(watch: SyncWatch) -> bool:
    return bool(watch.syncs) and watch.syncs[-1].trained > 0


def _started(thread: Thread, stack: ExitStack) -> Thread:
    """Start a thread that ends with the block."""
    stack.callback(thread.stop)
    thread.start()
    return thread


def text(result: Result) -> str:
    """A line for each interval."""
    rows = []
    for each in result["results"]:
        seconds, requests = each["latency"]["seconds"], each["requests"]
        total, goal = seconds["total"], each["sync_every"] + GOAL
        stages = [f"{seconds[name]['p50']:.2f}" for name in ("join", "train", "push", "apply")]
        rows.append(
            [
                f"{each['sync_every']:g}",
                str(each["latency"]["probes"]),
                *stages,
                f"{total['p50']:.2f}",
                f"{total['p95']:.2f}",
                "yes" if total["p95"] <= goal else "no",
                f"{1e3 * requests['p50']:.1f}",
                f"{1e3 * requests['p99']:.1f}",
            ]
        )
    head = ["sync every, s", "probes", "join", "train", "push", "apply", "p50, s", "p95, s"]
    head += [f"p95 <= interval + {GOAL} s", "request p50, ms", "p99, ms"]
    return markdown(head, "r" * len(head), rows)


BENCHMARK = Benchmark(
    script=__file__,
    about=__doc__,
    settings=LatencySettings,
    measure=measure,
    text=text,
    device=False,
    add_options=add_options,
    read_options=lambda args: {"redis": args.redis},
)

if __name__ == "__main__":
    BENCHMARK.main()
