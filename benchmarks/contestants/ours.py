"""Run the contestants of `peers.py` that use this project's environment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import cowclip_merlin as cc
from contestants.job import WARM_UP_STEPS, Clock, Job
from cowclip_merlin import compat
from cowclip_merlin.bench.random_data import CONTINUOUS, random_model
from cowclip_merlin.bench.throughput import make_mlp_train_function
from cowclip_merlin.loading import DeviceData, steps_per_epoch
from cowclip_merlin.models.hidden.layers import computing_in
from cowclip_merlin.optimizer.inner_optimizers import warmup_schedule
from cowclip_merlin.training.scoring.predicting import Predictor
from cowclip_merlin.training.train_step import (
    execution_lengths,
    make_train_function,
    steps_per_execution,
)
from cowclip_merlin.types import Array, KerasOptimizer

if TYPE_CHECKING:
    from contestants.rows import Log


def run(name: str, log: Log, job: Job) -> tuple[float, Array | None]:
    """Train "bare-mlp", "keras-adam", "cowclip UPDATE" or "cowclip UPDATE PRECISION" once."""
    try:
        return (_bare_mlp(log, job), None) if name == "bare-mlp" else _train(name, log, job)
    finally:
        compat.release_models()


def _lengths(rows: int, job: Job) -> Iterator[list[int]]:
    """Yield the steps of each call of an epoch: one warm-up call, then calls as in training."""
    most, steps = steps_per_execution(job.batch), steps_per_epoch(rows, job.batch)
    for epoch in range(job.epochs):
        warm_up = [] if epoch else [WARM_UP_STEPS]
        yield [*warm_up, *execution_lengths(sum(warm_up), steps, most, [])]


def _bare_mlp(log: Log, job: Job) -> float:
    """Train only the MLP on constant input, with as many steps per call as the others."""
    inputs = len(log.fields) * job.embedding_dim + CONTINUOUS
    given = {"inputs": inputs, "widths": job.widths, "lr": job.lr}
    train, loss_sum = make_mlp_train_function(job.batch, **given)
    clock = Clock(loss_sum.numpy)
    for lengths in _lengths(len(log.train), job):
        for steps in lengths:
            train(steps)
            clock.tick(steps * job.batch, steps)
    return clock.rate()


def _train(name: str, log: Log, job: Job) -> tuple[float, Array]:
    """Train like `cowclip train`: the same rows in memory, the same steps per call."""
    precision = name.split()[2] if name.count(" ") == 2 else "float32"
    widths = {"embedding_dim": job.embedding_dim, "mlp": job.widths}
    with computing_in(precision):
        model = random_model("deepfm", log.fields, init_std=job.init_std, seed=job.seed, **widths)
    optimizer = _optimizer(name, log, job)
    optimizer._create_all_weights(model.trainable_variables)
    loss_sum = compat.tensorflow().Variable(0.0, dtype="float64")
    data = DeviceData(log.train)
    train, clock = make_train_function(model, optimizer, data, loss_sum), Clock(loss_sum.numpy)
    for epoch, lengths in enumerate(_lengths(data.rows, job)):
        sizes = [n * job.batch for n in lengths]
        for rows in data.variable_batches(sizes, seed=job.seed, epoch=epoch):
            train(rows, job.batch)
            clock.tick(len(rows), steps_per_epoch(len(rows), job.batch))
    if isinstance(optimizer, cc.CowClip):
        optimizer.flush()  # the time includes the work that "exact" postpones
    return clock.rate(), Predictor(model, DeviceData(log.test)).predict()[:, 0]


def _optimizer(name: str, log: Log, job: Job) -> KerasOptimizer:
    adam = compat.tensorflow().keras.optimizers.legacy.Adam
    if name == "keras-adam":
        return adam(job.lr)
    steps = round(job.warmup_epochs * steps_per_epoch(len(log.train), job.batch))
    return cc.CowClip(
        adam(job.embedding_lr),
        adam(warmup_schedule(job.lr, steps)),
        r=job.r,
        zeta=job.zeta,
        l2=job.l2,
        update=name.split()[1],
        embeddings=["embeddings"],
        fields=log.fields,
    )
