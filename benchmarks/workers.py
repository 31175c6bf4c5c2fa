"""Train with several workers: time of a step, bytes that they send, and the computed scaling.

    python benchmarks/workers.py [--part all|measured|computed] [--rows 300000]
        [--batch-sizes 1024,8192] [--tables mirrored,sharded] [--workers 1,2,3] [--epochs 4]
        [--rounds 1] [--work DIR] [--global-batch 65536] [--vocabularies 1000000,33800000]
        [--machines 1,2,4,8,16,32,64] [--gpus 1,2,4,8] [--machine-steps FILE,FILE]
        [--machine-kernels FILE] [--gpu-steps FILE,FILE] [--gpu-kernels FILE] [--bandwidth 1]
        [--latency 1] [--hop 0.1] [--gpu-bandwidth 150] [--gpu-latency 0.03] [--gpu-hop 0]
        [--figure FILE.svg] [--json FILE] [--overwrite]

Measured: a generated Criteo-format log is prepared once in --work. For every case, `cowclip train`
trains a DeepFM with the update `exact` on this machine, one case after the other. Milliseconds per
step are the median of the epochs after the first one. The bytes are those that the run logs. Beside
them is the formula without padding, for u distinct ids in a worker's part of a batch (the largest
of the workers, mean over the steps) and rows of d + 1 numbers:

- mirrored: (N - 1) u (8 + 4 (d + 1))
- sharded: (N - 1) / N u (8 + 8 (d + 1))
- both: 2 (N - 1) / N * 4 bytes for each dense weight

All processes share the cores of this machine, so the speed-up says what the exchange costs, not
what several machines gain.

Computed: T(N) = C(B / N) + R + bytes / bandwidth + time of the exchanges, for --machines and --gpus
with --global-batch rows per step. C is an `exact` step of one process from the files of
`cowclip bench`. R is the update after the exchange, from a file of `kernels.py`: with mirrored
tables of all rows of the batch, with sharded ones of a share. Ids are random with a power law. The
network is assumed. A gather takes N - 1 hops along a ring of workers, and a sum twice as many. The
step has no overlap and no stragglers.
"""

from __future__ import annotations

from typing import Any

from harness.benchmark import Benchmark
from worker_scaling.figure import draw_figure
from worker_scaling.model import compute
from worker_scaling.runs import measure_runs
from worker_scaling.settings import WorkerSettings
from worker_scaling.text import text

FILES = ("machine_steps", "machine_kernels", "gpu_steps", "gpu_kernels")


def measure(settings: WorkerSettings) -> dict[str, Any]:
    """Run the chosen parts; return a result for JSON."""
    # The computed part comes first: a missing file must not end the command after all runs.
    computed = _computed(settings) if settings.computes else None
    measured = measure_runs(settings) if settings.runs else None
    return {"what": "training with several workers", "measured": measured, "computed": computed}


def _computed(settings: WorkerSettings) -> dict[str, Any]:
    return {"from": {name: getattr(settings, name) for name in FILES}, **compute(settings)}


def draw_result(settings: WorkerSettings, result: dict[str, Any]) -> None:
    """Draw the figure if a file is given."""
    if settings.figure:
        draw_figure(result["computed"], settings.figure)


BENCHMARK = Benchmark(
    script=__file__,
    about=__doc__,
    settings=WorkerSettings,
    measure=measure,
    text=text,
    device=False,
    draw=draw_result,
)

if __name__ == "__main__":
    BENCHMARK.main()
