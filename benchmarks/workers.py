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

from cowclip_merlin.types import JsonObject
from harness.benchmark import Benchmark
from harness.tables import markdown
from worker_scaling.runs import measure_runs
from worker_scaling.settings import WorkerSettings


def measure(settings: WorkerSettings) -> JsonObject:
    """Train all cases; return a result for JSON."""
    return {"what": "training with several workers", **measure_runs(settings)}


def text(result: JsonObject) -> str:
    """Format the result: one row for each case."""
    head = (
        "batch", "tables", "workers", "ms per step", "speed-up", "MB per step", "formula, MB",
        "measured / formula", "rows alone",
    )  # fmt: skip
    return markdown(head, "rlrrrrrrr", [_row(r) for r in result["results"]])


def _row(r: JsonObject) -> tuple[str, ...]:
    alone = r["workers"] == 1
    return (
        f"{r['batch']:,}",
        r["tables"],
        str(r["workers"]),
        f"{r['ms_per_step']:.1f}",
        f"{r['speed_up']:.2f}",
        *(_megabytes(r[name], alone) for name in ("sent_bytes", "formula_bytes")),
        *("" if alone else f"{r[name]:.3f}" for name in ("ratio", "ratio_of_rows")),
    )


def _megabytes(size: float, alone: bool) -> str:
    return "" if alone else f"{size / 1e6:.3f}"


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
