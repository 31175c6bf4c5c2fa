"""Memory and files of online training while a stream goes on.

    SOAK_MINUTES=30 python -m pytest -s tests/online/whole/test_soak.py

`SOAK_MINUTES` is how long events come; without it, nothing is run. `RATE` is impressions per
second, 2000. `-s` shows the sizes.

Joiner and trainer remove what they no longer need from logs in files. Items come and go, so rows
are admitted and expire all the time. The medians of the second fifth of the time and of the last
fifth are compared: files may grow by a segment of a log, and memory by 5% or 10 MB. A process grows
in its first minutes, so memory is compared only in a soak of ten minutes or more.
"""

import os
import statistics
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from watched import WatchedPipeline

from cowclip_merlin.demo.pipeline import EVENT_LOGS, LEAST_MINUTES, SYNCS, DemoSettings
from cowclip_merlin.demo.report import percentiles
from cowclip_merlin.online import open_log
from cowclip_merlin.online.logs.file_log import SEGMENT_BYTES

MINUTES = float(os.environ.get("SOAK_MINUTES", "0"))
RATE = float(os.environ.get("RATE", "2000"))
ENOUGH = 10.0  # minutes after which processes must not grow
SAMPLE_EVERY = min(5.0, 60 * MINUTES / 25)
SECONDS_PER_DAY = 20  # of drift: items come and go
MOST_GROWTH, NOISE = 1.05, 10.0  # relative; MB that always vary
MOST_BEHIND = 5.0  # seconds of events that may wait for the trainer at the end

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not MINUTES, reason="takes minutes: set SOAK_MINUTES"),
]


def size_of(folder, pattern="**/*"):
    """Megabytes of the files of a folder; files may go away meanwhile."""
    total = 0
    for file in folder.glob(pattern):
        try:
            total += file.stat().st_size if file.is_file() else 0
        except FileNotFoundError:
            continue
    return total / 1e6


def sample(pipeline):
    """Megabytes of each process and of each log, events that wait for the trainer."""
    parts, last = pipeline.parts, pipeline.watch.syncs[-1]
    memory = {each.name: each.megabytes for each in (parts.joiner, parts.trainer, *parts.servers)}
    disk = {name: size_of(Path(getattr(pipeline.logs, name))) for name in (*EVENT_LOGS, SYNCS)}
    disk["run"] = size_of(pipeline.work / "run")
    disk["joiner's state"] = size_of(pipeline.work, "join.state*")
    behind = open_log(pipeline.logs.examples).end()[0] - last.position[0]
    return {"memory": memory, "disk": disk, "behind": behind, "trained": last.trained}


def sizes(samples, kind):
    """Of each part the medians of the second fifth and of the last, and the largest."""
    fifth = max(1, len(samples) // 5)
    for part in samples[0][kind]:
        values = [each[kind][part] for each in samples]
        second, last = values[fifth : 2 * fifth], values[-fifth:]
        yield part, statistics.median(second), statistics.median(last), max(values)


def assert_no_growth(samples, kind, allowed):
    for part, before, after, most in sizes(samples, kind):
        print(f"{kind}, {part}: {before:.0f} MB, {after:.0f} MB, at most {most:.0f} MB")
        assert after <= allowed(before), part


@pytest.fixture(scope="module")
def soaked(tmp_path_factory):
    """Samples of a run, and its requests."""
    minutes = max(MINUTES, LEAST_MINUTES)
    days = round(60 * minutes / SECONDS_PER_DAY)
    demo = DemoSettings(minutes=minutes, rate=RATE, days=days, seed=1)
    samples = []
    with ExitStack() as stack:
        pipeline = WatchedPipeline(
            demo, tmp_path_factory.mktemp("soak"), stack, seconds_per_day=SECONDS_PER_DAY,
            trim=("--trim",), repeats=("--repeats-window", "60"),
        )  # fmt: skip
        pipeline.begin(asked=0)
        until = time.monotonic() + 60 * MINUTES
        while pipeline.producer.is_running and time.monotonic() < until:
            time.sleep(SAMPLE_EVERY)
            pipeline.check()
            samples.append(sample(pipeline))
    return samples, pipeline.requester


def test_memory_and_files_do_not_grow(soaked):
    samples, _ = soaked
    print()
    assert_no_growth(samples, "disk", lambda mb: MOST_GROWTH * mb + SEGMENT_BYTES / 1e6)
    if MINUTES >= ENOUGH:
        assert_no_growth(samples, "memory", lambda mb: max(MOST_GROWTH * mb, mb + NOISE))


def test_the_trainer_keeps_up_and_each_request_is_answered(soaked):
    samples, requester = soaked
    asked = percentiles(requester.seconds, 50, 99)
    print(f"\n{samples[-1]['trained']:,} events trained, requests: {asked}")
    assert len(requester.seconds) > 0 == requester.unanswered
    assert samples[-1]["behind"] <= MOST_BEHIND * RATE
