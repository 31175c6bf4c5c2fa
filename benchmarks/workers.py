"""Train with several workers: time of a step, and the bytes that they send.

    python benchmarks/workers.py [--rows 300000] [--batch-sizes 1024,8192]
        [--tables mirrored,sharded] [--workers 1,2,3] [--epochs 4] [--rounds 1] [--work DIR]
        [--json FILE] [--overwrite]

A generated Criteo-format log is prepared once in --work. For every case, `cowclip train` trains a
DeepFM with the update `exact` on this machine, one case after the other. Milliseconds per step are
the median of the epochs after the first one. The bytes are those that the run logs. Beside them is
the formula without padding, for u distinct ids in a worker's part of a batch (the largest of the
workers, mean over the steps) and rows of d + 1 numbers:

- mirrored: (N - 1) u (8 + 4 (d + 1))
- sharded: (N - 1) / N u (8 + 8 (d + 1))
- both: 2 (N - 1) / N * 4 bytes for each dense weight

All processes share the cores of this machine, so the speed-up says what the exchange costs, not
what several machines gain.
"""

from __future__ import annotations

from typing import Any

from harness.benchmark import Benchmark
from worker_scaling.runs import measure_runs
from worker_scaling.settings import WorkerSettings
from worker_scaling.text import text


def measure(settings: WorkerSettings) -> dict[str, Any]:
    """Train all cases; return a result for JSON."""
    return {"what": "training with several workers", **measure_runs(settings)}


BENCHMARK = Benchmark(
    script=__file__,
    about=__doc__,
    settings=WorkerSettings,
    measure=measure,
    text=text,
    device=False,
)

if __name__ == "__main__":
    BENCHMARK.main()
