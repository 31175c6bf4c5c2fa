"""Run a pipeline for long, and watch its memory and its files."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cowclip_merlin.checks import check_positive
from cowclip_merlin.demo.measuring.requests import Requester
from cowclip_merlin.demo.measuring.sync_watch import SyncWatch
from cowclip_merlin.demo.online.brokers import EVENT_LOGS, SYNCS, Logs, make_logs
from cowclip_merlin.demo.online.pipeline import Pipeline
from cowclip_merlin.demo.online.processes import Process, Processes
from cowclip_merlin.demo.online.report import percentiles
from cowclip_merlin.demo.online.settings import LEAST_MINUTES, DemoSettings
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.features_file import load_features
from cowclip_merlin.online.logs.open_log import open_log
from cowclip_merlin.synthetic.drifting_stream import write_stream_features
from harness.options import option

Result = dict[str, Any]

SECONDS_PER_DAY = 20
"""Seconds of a day of drift: items come and go, and their rows expire, all the time."""

_REPEATS = "60"  # seconds for which the trainer keeps keys
_TRIM = ("--trim",)
_MEGABYTE = 1e6


@dataclass(frozen=True, kw_only=True)
class SoakSettings:
    """How long it runs.

    Attributes:
        minutes: of events.
        rate: impressions per second.
        sample_every: seconds between two looks at memory and files.
        seed: of the stream and of the model.

    Raises:
        InputError: a number is out of range.
    """

    minutes: float = option(30.0, "minutes of events")
    rate: float = option(2000.0, "impressions per second")
    sample_every: float = option(5.0, "seconds between two looks at memory and files")
    seed: int = option(1, "seed of the stream and of the model")

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        check_positive({"--rate": self.rate, "--sample-every": self.sample_every})
        if not LEAST_MINUTES <= self.minutes <= 33:
            raise InputError(f"--minutes is {self.minutes:g}; give {LEAST_MINUTES:g} to 33")
        if 5 * self.sample_every > 60 * self.minutes:
            raise InputError(f"--sample-every {self.sample_every:g}: gives fewer than 5 samples")


class Soak:
    """A pipeline on logs in files whose parts remove what was read.

    Args:
        settings: how long it runs.
        work: empty folder.
        stack: ends what is started.
    """

    def __init__(self, settings: SoakSettings, work: Path, stack: ExitStack) -> None:
        self._settings, self._work = settings, work
        self._demo = DemoSettings(
            minutes=settings.minutes,
            rate=settings.rate,
            days=max(1, round(60 * settings.minutes / SECONDS_PER_DAY)),
            seed=settings.seed,
        )
        features = work / "features.yaml"
        write_stream_features(features, seconds_per_day=SECONDS_PER_DAY)
        self._columns = load_features(features)
        self.processes = stack.enter_context(Processes(work / "logs"))
        self.logs: Logs = make_logs(self._demo, self.processes, work)
        self.watch = SyncWatch(open_log(self.logs.syncs))
        stack.callback(self.watch.stop)
        self.watch.start()
        self._pipeline = Pipeline(
            self._demo,
            self.processes,
            self.logs,
            features,
            work,
            joiner_options=_TRIM,
            trainer_options=(*_TRIM, "--repeats-window", _REPEATS),
        )

    def run(self, stack: ExitStack) -> Result:
        """Run until the stream has ended; return what was sampled."""
        self._pipeline.start(servers=2)
        self._pipeline.wait_for_servers()
        producer = self._pipeline.start_producer()
        self.processes.wait_until("events", lambda: self._trained() > 5 * self._settings.rate)
        shown = open_log(self.logs.impressions)
        requester = Requester(self._columns, shown, self._pipeline.ports[0], every=0.05)
        stack.callback(requester.stop)
        requester.start()
        samples, began = [], time.monotonic()
        while producer.is_running:
            time.sleep(self._settings.sample_every)
            self._check(requester)
            samples.append({"seconds": time.monotonic() - began} | self._sample())
        return {
            "samples": samples,
            "requests": percentiles(requester.seconds, 50, 99)
            | {"count": len(requester.seconds), "unanswered": requester.unanswered},
        }

    def _sample(self) -> Result:
        parts: list[Process] = [self._pipeline.joiner, self._pipeline.trainer]
        parts += self._pipeline.servers
        last = self.watch.syncs[-1]
        return {
            "megabytes": {part.name: part.megabytes for part in parts},
            "disk": {name: self._disk(name) for name in (*EVENT_LOGS, SYNCS)}
            | {"run": _size_of(self._work / "run"), "joiner": _size_of(self._work, "join.state*")},
            "trained": last.trained,
            "behind": open_log(self.logs.examples).end()[0] - last.position[0],
            "rows": int(last.info.get("rows", 0)),
        }

    def _disk(self, name: str) -> float:
        return _size_of(Path(getattr(self.logs, name)))

    def _trained(self) -> int:
        return self.watch.syncs[-1].trained if self.watch.syncs else 0

    def _check(self, requester: Requester) -> None:
        """Raise an error if a process or a thread has failed."""
        self.processes.check()
        for thread in (self.watch, requester):
            if thread.failure:
                raise RuntimeError(thread.failure)


def _size_of(folder: Path, pattern: str = "**/*") -> float:
    """Megabytes of the files of a folder; files may go away meanwhile."""
    total = 0
    for file in folder.glob(pattern):
        try:
            total += file.stat().st_size if file.is_file() else 0
        except FileNotFoundError:
            continue
    return total / _MEGABYTE


def growth(samples: Sequence[Mapping[str, Any]], kind: str) -> dict[str, dict[str, float]]:
    """Compare the second fifth of the samples with the last one.

    Args:
        samples: sorted by time.
        kind: "megabytes" or "disk".

    Returns:
        For each part the medians `before` and `after`, and the `largest`.
    """
    fifth = max(1, len(samples) // 5)
    early, late = samples[fifth : 2 * fifth], samples[-fifth:]

    def of(part: str, some: Sequence[Mapping[str, Any]]) -> list[float]:
        return [sample[kind][part] for sample in some]

    return {
        part: {
            "before": statistics.median(of(part, early)),
            "after": statistics.median(of(part, late)),
            "largest": max(of(part, samples)),
        }
        for part in samples[0][kind]
    }


def measure_soak(settings: SoakSettings, work: Path) -> Result:
    """Run a pipeline; return its samples, and how memory and files have grown.

    Args:
        settings: how long it runs.
        work: empty folder for the files.

    Raises:
        InputError: a part has failed.
        RuntimeError: a thread of this process has failed.
    """
    with ExitStack() as stack:
        result = Soak(settings, work, stack).run(stack)
    samples = result["samples"]
    return result | {"memory": growth(samples, "megabytes"), "files": growth(samples, "disk")}
