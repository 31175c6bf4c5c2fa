"""Measure the latency of one pipeline."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from cowclip_merlin.demo.measuring.probes import Prober
from cowclip_merlin.demo.measuring.requests import Requester
from cowclip_merlin.demo.measuring.sync_watch import SyncWatch
from cowclip_merlin.demo.online.brokers import make_logs
from cowclip_merlin.demo.online.pipeline import Pipeline
from cowclip_merlin.demo.online.processes import Processes
from cowclip_merlin.demo.online.report import latency_summary, percentiles
from cowclip_merlin.demo.online.settings import DemoSettings
from cowclip_merlin.online.events.features_file import load_features
from cowclip_merlin.online.logs.open_log import open_log
from cowclip_merlin.synthetic.drifting_stream import write_stream_features

Result = dict[str, Any]

WARM_UP = 5.0
"""Seconds of events before the first probe."""


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


def _started(thread: Any, stack: ExitStack) -> Any:
    """Start a thread that ends with the block."""
    stack.callback(thread.stop)
    thread.start()
    return thread
