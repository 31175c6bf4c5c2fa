"""Compute the time of a step with N workers from measured times of one.

    T(N) = C(B / N) + R + bytes / bandwidth + time of the exchanges

C is the measured step of one process at the batch of a worker. R is the work on rows that a
process alone does not have. Nothing overlaps, and all workers take the same time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cowclip_merlin.bench.random_data import criteo_fields, random_rows
from cowclip_merlin.errors import InputError
from worker_scaling.measured_times import Curve, kernel_curves, step_curve
from worker_scaling.runs import MODEL
from worker_scaling.settings import RUN_TABLES, WorkerSettings
from worker_scaling.traffic import (
    count_dense_weights,
    dense_bytes,
    largest_distinct,
    row_bytes,
)

BATCHES = 2
"""Random batches in which distinct ids are counted."""

EXCHANGES = {
    "mirrored": ("gather", "gather", "sum"),
    "sharded": ("gather", "all_to_all", "all_to_all", "all_to_all", "sum"),
}
"""Exchanges of a step: sizes, rows, dense gradients; or sizes, ids, rows, gradients, dense ones."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """What workers are connected by; all numbers are assumed.

    Attributes:
        bandwidth: GB/s that a worker sends.
        latency: milliseconds of an exchange.
        hop: milliseconds of each further hop; TensorFlow gathers and sums along a ring.
    """

    bandwidth: float
    latency: float
    hop: float

    def transfer_ms(self, sent: float) -> float:
        """Return the milliseconds to send these bytes."""
        return sent / self.bandwidth / 1e6

    def exchanges_ms(self, tables: str, workers: int) -> float:
        """Return the milliseconds of the exchanges of a step, without their bytes.

        >>> Network(bandwidth=1, latency=1, hop=0).exchanges_ms("sharded", 64)
        5.0
        """
        hops = {"gather": workers - 1, "sum": 2 * (workers - 1), "all_to_all": 1}
        further = sum(hops[each] - 1 for each in EXCHANGES[tables])
        return float(self.latency * len(EXCHANGES[tables]) + self.hop * further)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One kind of worker.

    Attributes:
        steps: vocabulary -> milliseconds of a step, by batch size.
        kernels: row kernel -> milliseconds, by bytes.
        network: between the workers.
    """

    steps: Mapping[int, Curve]
    kernels: Mapping[str, Curve]
    network: Network


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is trained.

    Attributes:
        batch: rows per step of all workers.
        vocabulary: ids of all fields together.
        dim: length of an embedding row.
        dense: weights outside of the tables.
        distinct: number of workers -> distinct ids of a worker's part of a batch; 1: of all.
    """

    batch: int
    vocabulary: int
    dim: int
    dense: int
    distinct: Mapping[int, float]


def compute(settings: WorkerSettings) -> dict[str, Any]:
    """Compute all steps; return the result for JSON.

    Raises:
        InputError: if there is no measured step as small as the batch of a worker.
    """
    kinds = {"machines": settings.machines, "gpus": settings.gpus}
    machines = {"machines": _machines(settings), "gpus": _gpus(settings)}
    dense = count_dense_weights(MODEL.embedding_dim, MODEL.mlp)
    numbers = sorted({1, *settings.machines, *settings.gpus})
    jobs = [_job(settings, vocabulary, dense, numbers) for vocabulary in settings.vocabularies]
    return {
        "global_batch": settings.global_batch,
        "dense_weights": dense,
        **{
            kind: {
                "network": asdict(machines[kind].network),
                "results": [
                    step
                    for job in jobs
                    for tables in RUN_TABLES
                    for workers in sorted(counts)
                    for step in [step_with(machines[kind], job, tables, workers)]
                ],
            }
            for kind, counts in kinds.items()
        },
    }


def step_with(machine: Machine, job: Job, tables: str, workers: int) -> dict[str, Any]:
    """Compute one step and its parts in milliseconds.

    Raises:
        InputError: if there is no measured step as small as the batch of a worker.
    """
    curve, rows = machine.steps[job.vocabulary], job.batch / workers
    if rows < curve.x[0]:
        raise InputError(
            f"{workers} workers have {rows:g} rows each, and the smallest measured step has "
            f"{curve.x[0]}; use fewer workers, or a larger --global-batch"
        )
    parts = {"step_ms": curve.at(rows), "update_ms": 0.0, "transfer_ms": 0.0, "exchanges_ms": 0.0}
    sent = 0.0
    if workers > 1:
        sent = row_bytes(tables, job.distinct[workers], workers, job.dim)
        sent += dense_bytes(job.dense, workers)
        parts["update_ms"] = update_ms(machine.kernels, job, tables, workers)
        parts["transfer_ms"] = machine.network.transfer_ms(sent)
        parts["exchanges_ms"] = machine.network.exchanges_ms(tables, workers)
    total, alone = sum(parts.values()), curve.at(job.batch)
    return {
        "vocabulary": job.vocabulary,
        "tables": tables,
        "workers": workers,
        "distinct": job.distinct[workers],
        "sent_bytes": sent,
        **parts,
        "ms": total,
        "speed_up": alone / total,
        "speed_up_without_exchange": alone / parts["step_ms"],
    }


def update_ms(kernels: Mapping[str, Curve], job: Job, tables: str, workers: int) -> float:
    """Return R: group the received sums, catch rows up, clip and update them.

    With mirrored tables, every worker gets the sums of all and updates all rows of the batch. With
    sharded ones, a worker gets as many sums as it sends, for its share of the rows. Both count all
    such rows, although C has updated some of them: R is an upper bound.
    """
    sums, rows = job.distinct[workers], job.distinct[1] / workers
    if tables == "mirrored":
        sums, rows = workers * sums, job.distinct[1]
    numbers = job.dim + 1
    size = {
        "group": 8 * sums + 8 * rows,
        "update": 4 * sums * (numbers + 1) + 24 * rows * numbers + 8 * rows,
        "replay": 24 * rows * numbers + 8 * rows,
    }
    return sum(kernels[kernel].at(size[kernel]) for kernel in size)


def _job(settings: WorkerSettings, vocabulary: int, dense: int, numbers: Sequence[int]) -> Job:
    batch, fields = settings.global_batch, criteo_fields(vocabulary)
    offsets = np.cumsum([0, *fields.values()])[:-1].astype(np.int32)
    ids = random_rows(BATCHES * batch, fields).ids + offsets
    parts = np.split(np.arange(BATCHES * batch), BATCHES)
    distinct = {workers: largest_distinct(ids, parts, workers) for workers in numbers}
    return Job(
        batch=batch,
        vocabulary=vocabulary,
        dim=MODEL.embedding_dim,
        dense=dense,
        distinct=distinct,
    )


def _machines(settings: WorkerSettings) -> Machine:
    return Machine(
        steps={v: step_curve(settings.machine_steps, v) for v in settings.vocabularies},
        kernels=kernel_curves(settings.machine_kernels),
        network=Network(bandwidth=settings.bandwidth, latency=settings.latency, hop=settings.hop),
    )


def _gpus(settings: WorkerSettings) -> Machine:
    return Machine(
        steps={v: step_curve(settings.gpu_steps, v) for v in settings.vocabularies},
        kernels=kernel_curves(settings.gpu_kernels),
        network=Network(
            bandwidth=settings.gpu_bandwidth, latency=settings.gpu_latency, hop=settings.gpu_hop
        ),
    )
