"""Soak test of several workers: their memory and threads over many steps.

    python benchmarks/worker_soak.py [--steps 20000] [--workers 2] [--tables mirrored|sharded]
        [--rows 30000] [--batch-size 64] [--sample-every 1] [--work DIR] [--json FILE] [--overwrite]

`cowclip train` trains a DeepFM with the update `exact` on a generated log, with all workers on this
machine. Each epoch ends with an evaluation and a checkpoint. Meanwhile the threads and the memory
of each worker are read.

The second fifth of the time is compared with the last fifth. The command fails if the largest
number of threads of a worker has grown, or the median of its memory by more than 5%.
"""

from __future__ import annotations

from typing import Any

from cowclip_merlin.errors import InputError
from cowclip_merlin.system.hardware import processor
from harness.benchmark import Benchmark
from harness.tables import markdown
from worker_scaling.soak import WorkerSoakSettings, growth, sample_run

MOST_GROWTH = 1.05
"""Memory in the last fifth of the time, relative to the second fifth."""


def measure(settings: WorkerSoakSettings) -> dict[str, Any]:
    """Train and watch the workers.

    Raises:
        InputError: if the run fails.
    """
    facts = {"workers": settings.workers, "tables": settings.tables}
    result = sample_run(settings)
    grown = [growth(samples) for samples in result["samples"]]
    return (
        {"what": "soak test of workers", "hardware": processor()}
        | facts
        | result
        | {"growth": grown}
    )


def check(result: dict[str, Any]) -> None:
    """Raise an error if memory or threads have grown."""
    faults = []
    for rank, grown in enumerate(result["growth"]):
        before, after = grown["megabytes"]
        if after > MOST_GROWTH * before:
            faults.append(f"worker {rank}: {before:.0f} MB became {after:.0f} MB")
        before, after = grown["threads"]
        if after > before:
            faults.append(f"worker {rank}: {before} threads became {after}")
    if faults:
        raise InputError("; ".join(faults))


def text(result: dict[str, Any]) -> str:
    """Memory and threads of each worker."""
    head = ["worker", "MB, second fifth", "MB, last fifth", "threads, second fifth", "last fifth"]
    rows = [
        [
            str(rank),
            *(f"{size:.0f}" for size in grown["megabytes"]),
            *(str(number) for number in grown["threads"]),
        ]
        for rank, grown in enumerate(result["growth"])
    ]
    about = f"{result['steps']:,} steps in {result['seconds']:.0f} s, {result['tables']} tables"
    return f"{about}\n\n{markdown(head, 'lrrrr', rows)}"


BENCHMARK = Benchmark(
    script=__file__,
    about=__doc__,
    settings=WorkerSoakSettings,
    measure=measure,
    text=text,
    device=False,
    check=check,
)

if __name__ == "__main__":
    BENCHMARK.main()
