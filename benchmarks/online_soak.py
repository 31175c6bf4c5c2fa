"""Soak test of online training: memory and files while a stream goes on.

    python benchmarks/online_soak.py [--minutes 30] [--rate 2000] [--sample-every 5] [--seed 1]
        [--json FILE] [--overwrite]

A generated stream goes through the joiner and the trainer to two servers, each a process. The logs
are in files; joiner and trainer remove what they no longer need. Items come and go, so rows are
admitted and expire all the time. Meanwhile one server gets requests of one row.

The medians of the second fifth of the time and of the last fifth are compared. The command fails
if the memory of a process has grown by more than 5% and 10 MB, if files have grown by more than a
segment of a log, if the trainer is more than 5 seconds of events behind at the end, or if a request
had no answer. A small process varies by some MB with the events that wait for it.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.logs.file_log import SEGMENT_BYTES
from cowclip_merlin.system.hardware import processor
from harness.benchmark import Benchmark
from harness.tables import markdown
from online_service.soak import Result, SoakSettings, measure_soak

MOST_GROWTH, NOISE = 1.05, 10.0
"""Memory in the last fifth of the time, relative to the second fifth; MB that always vary."""

MOST_BEHIND = 5.0
"""Seconds of events that may wait for the trainer at the end."""


def measure(settings: SoakSettings) -> Result:
    """Run the pipeline.

    Raises:
        InputError: a part has failed.
    """
    with TemporaryDirectory() as folder:
        result = measure_soak(settings, Path(folder))
    facts = {"minutes": settings.minutes, "rate": settings.rate}
    return {"what": "soak test", "hardware": processor()} | facts | result


def check(result: Result) -> None:
    """Raise an error if memory or files have grown, or if a part was too slow."""
    last, faults = result["samples"][-1], []
    for part, size in result["memory"].items():
        if size["after"] > max(MOST_GROWTH * size["before"], size["before"] + NOISE):
            faults.append(f"{part}: {size['before']:.0f} MB became {size['after']:.0f} MB")
    for part, size in result["files"].items():
        if size["after"] > MOST_GROWTH * size["before"] + SEGMENT_BYTES / 1e6:
            faults.append(f"files, {part}: {size['before']:.0f} MB became {size['after']:.0f} MB")
    if last["behind"] > MOST_BEHIND * result["rate"]:
        faults.append(f"the trainer is {last['behind']:,} events behind")
    if result["requests"]["unanswered"]:
        faults.append(f"{result['requests']['unanswered']} requests had no answer")
    if faults:
        raise InputError("; ".join(faults))


def text(result: Result) -> str:
    """Memory and files, and how fast the parts were."""
    samples, requests = result["samples"], result["requests"]
    head = ["MB", "second fifth", "last fifth", "largest"]
    kinds = [("", "memory"), ("files, ", "files")]
    rows = [
        [name + part, *(f"{size[key]:.0f}" for key in ("before", "after", "largest"))]
        for name, kind in kinds
        for part, size in result[kind].items()
    ]
    behind = max(sample["behind"] for sample in samples)
    return "\n".join(
        [
            markdown(head, "lrrr", rows),
            f"{samples[-1]['trained']:,} events trained; {samples[-1]['rows']:,} rows at the end; "
            f"at most {behind:,} events behind, {samples[-1]['behind']:,} at the end",
            f"{requests['count']:,} requests of one row: p50 {1e3 * requests['p50']:.1f} ms, "
            f"p99 {1e3 * requests['p99']:.1f} ms; {requests['unanswered']} without an answer",
        ]
    )


BENCHMARK = Benchmark(
    script=__file__,
    about=__doc__,
    settings=SoakSettings,
    measure=measure,
    text=text,
    device=False,
    check=check,
)

if __name__ == "__main__":
    BENCHMARK.main()
