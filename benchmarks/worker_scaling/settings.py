"""The settings of `workers.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cowclip_merlin.bench.random_data import check_vocabulary_size
from cowclip_merlin.checks import (
    check_at_least_one,
    check_choices,
    check_not_negative,
    check_positive,
    check_unique,
)
from cowclip_merlin.errors import InputError
from harness.options import option

PARTS = ("all", "measured", "computed")
RUN_TABLES = {"mirrored": "fused", "sharded": "sharded"}
"""Name of the tables on the pages -> value of `cowclip train --tables`."""


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """Settings of the measurement and of the computation.

    Attributes:
        part: "measured": the runs; "computed": the scaling; or "all".
        rows: rows of the generated log.
        batches: global batch sizes of the runs.
        tables: "mirrored", "sharded".
        workers: numbers of workers of the runs, with 1.
        epochs: epochs of a run; the first one is not counted.
        rounds: runs of every case.
        work: folder of the prepared log and of the runs.
        global_batch: batch size of the computed steps.
        vocabularies: ids of all fields together, of the computed steps.
        machines: computed numbers of machines.
        gpus: computed numbers of GPUs.
        machine_steps: files of `cowclip bench`, measured on a machine.
        machine_kernels: file of `kernels.py`, measured on a machine.
        gpu_steps: files of `cowclip bench`, measured on a GPU.
        gpu_kernels: file of `kernels.py`, measured on a GPU.
        bandwidth: GB/s that a machine sends.
        latency: milliseconds of one exchange between machines.
        hop: milliseconds of every further hop of an exchange between machines.
        gpu_bandwidth: GB/s that a GPU sends.
        gpu_latency: milliseconds of one exchange between GPUs.
        gpu_hop: milliseconds of every further hop of an exchange between GPUs.
        figure: file for a figure of the computed scaling as SVG.

    Raises:
        InputError: if a value is unknown, out of range or given twice.
    """

    part: str = option("all", "which part to run", choices=PARTS)
    rows: int = option(300_000, "of the generated log")
    batches: Sequence[int] = option((1024, 8192), "rows per step", flag="--batch-sizes")
    tables: Sequence[str] = option(tuple(RUN_TABLES), "some of these")
    workers: Sequence[int] = option((1, 2, 3), "processes of a run; 1 must be one of them")
    epochs: int = option(4, "of a run; the first one is not counted")
    rounds: int = option(1, "runs of every case")
    work: Path = option(Path("work/workers"), "folder of the prepared log and the runs")
    global_batch: int = option(65_536, "rows per step of the computed part")
    vocabularies: Sequence[int] = option((1_000_000, 33_800_000), "ids of the computed part")
    machines: Sequence[int] = option((1, 2, 4, 8, 16, 32, 64), "computed numbers of machines")
    gpus: Sequence[int] = option((1, 2, 4, 8), "computed numbers of GPUs")
    machine_steps: Sequence[str] = option(
        ("2026-11-22-intel2-step-precision.json", "2026-11-22-intel2-step-33.8m-ids.json"),
        "files of cowclip bench, in benchmarks/results or with an absolute path",
    )
    machine_kernels: str = option("2026-11-22-intel2-kernels.json", "file of kernels.py")
    gpu_steps: Sequence[str] = option(
        ("2026-11-22-h100-step-operations.json",), "the same for a GPU"
    )
    gpu_kernels: str = option("2026-11-22-h100-kernels.json", "the same for a GPU")
    bandwidth: float = option(1.0, "GB/s that a machine sends; assumed")
    latency: float = option(1.0, "ms of an exchange between machines; assumed")
    hop: float = option(0.1, "ms of each further hop between machines; assumed")
    gpu_bandwidth: float = option(150.0, "GB/s that a GPU sends; assumed")
    gpu_latency: float = option(0.03, "ms of an exchange between GPUs; assumed")
    gpu_hop: float = option(0.0, "ms of each further hop between GPUs; assumed")
    figure: Path | None = option(
        None, "draw the computed part as SVG here", kind=Path, metavar="FILE", output=True
    )

    def __post_init__(self) -> None:
        """Reject values that cannot be measured or computed."""
        check_choices("--tables", self.tables, RUN_TABLES)
        counts = {
            "--batch-sizes": self.batches,
            "--workers": self.workers,
            "--machines": self.machines,
            "--gpus": self.gpus,
        }
        check_unique(counts | {"--tables": self.tables, "--vocabularies": self.vocabularies})
        single = {"--rows": self.rows, "--rounds": self.rounds, "--global-batch": self.global_batch}
        check_at_least_one(counts | single)
        check_vocabulary_size("--vocabularies", *self.vocabularies)
        check_positive({"--bandwidth": self.bandwidth, "--gpu-bandwidth": self.gpu_bandwidth})
        check_not_negative(
            {"--latency": self.latency, "--hop": self.hop}
            | {"--gpu-latency": self.gpu_latency, "--gpu-hop": self.gpu_hop}
        )
        self._check_runs()

    def _check_runs(self) -> None:
        if self.epochs < 2:
            raise InputError(f"--epochs is {self.epochs}; give 2 or more, the first is not counted")
        if 1 not in self.workers:
            given = ",".join(map(str, self.workers))
            raise InputError(f"--workers {given}: add 1, which the others are compared with")
        if self.figure and not self.computes:
            raise InputError(f"--figure {self.figure}: it shows the computed part; add that --part")

    @property
    def runs(self) -> bool:
        """Whether to measure the runs."""
        return self.part != "computed"

    @property
    def computes(self) -> bool:
        """Whether to compute the scaling."""
        return self.part != "measured"
