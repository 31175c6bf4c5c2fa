"""Probe the gradients of a training run at a given step, as data for the paper's Figure 4."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin import compat
from cowclip_merlin.diagnostics.probe import make_probe
from cowclip_merlin.diagnostics.row_norms import RowNorms
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import (
    Data,
    load_split_to_device,
    open_train_columns,
    steps_per_epoch,
    usual_generator,
)
from cowclip_merlin.system.files import atomic_write, check_writable
from cowclip_merlin.training.build import build_model, build_optimizer
from cowclip_merlin.training.run import check_sizes, set_up_tensorflow
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.training.train_step import make_train_step

if TYPE_CHECKING:
    from cowclip_merlin.loading.row_order import PackedBatch
    from cowclip_merlin.workflows import PreparedData


def probe_run(
    data: str | Path,
    settings: RunSettings,
    *,
    step: int = 1000,
    out: str | Path | None = None,
    overwrite: bool = False,
    device: str = "auto",
) -> RowNorms:
    """Train to a step as `train` does on all train rows, and probe the next batch's rows.

    Args:
        data: folder that `prepare` wrote.
        settings: the run's settings.
        step: number of steps before the probe.
        out: parquet file to write: `field`, `id`, `count` (in the training rows), `cnt` (in the
            batch), `w_norm`, `g_norm`, one line per distinct row.
        overwrite: replace `out` if the file exists.
        device: "auto", "cpu" or "gpu".

    Raises:
        InputError: if an input is wrong, the run does not reach the step, a validation fraction
            is set, or `out` cannot be written.
    """
    from cowclip_merlin.workflows import PreparedData

    prepared = PreparedData.load(data)
    check_sizes(prepared, settings)
    if settings.validation_fraction:  # rows of `prepare --validation` are no train rows
        raise InputError("validation_fraction: a probe trains on all rows; set it to 0")
    if out is not None:
        check_writable(out, overwrite=overwrite)
    steps = steps_per_epoch(prepared.rows["train"], settings.batch_size)
    if not 0 <= step < steps * settings.epochs:
        raise InputError(
            f"step {step}: the run has steps 0 to {steps * settings.epochs - 1}; choose one of "
            "them, or train for more epochs"
        )
    set_up_tensorflow(settings.seed, device)
    norms = _train_to(step, prepared, settings, steps)
    if out is not None:
        write_rows(Path(out), norms, prepared)
    return norms


def _train_to(step: int, prepared: PreparedData, settings: RunSettings, steps: int) -> RowNorms:
    values = settings.hyperparameters(prepared.kind)
    model = build_model(settings, values, prepared)
    optimizer = build_optimizer(settings, values, prepared, steps=steps)
    optimizer.create_state(model.trainable_variables)
    rows = load_split_to_device(
        open_train_columns(prepared, memory=None), batch_size=settings.batch_size
    )
    rows.generator = usual_generator(rows)
    loss_sum = compat.tensorflow().Variable(0.0, dtype="float64", trainable=False)
    train_step = make_train_step(model, optimizer, rows, loss_sum)
    with closing(_batches(rows, settings)) as batches:
        for _ in range(step):
            train_step(next(batches))
        return make_probe(model, optimizer, rows)(next(batches))


def _batches(rows: Data, settings: RunSettings) -> Iterator[PackedBatch]:
    for epoch in range(settings.epochs):
        with closing(rows.batches(settings.batch_size, seed=settings.seed, epoch=epoch)) as each:
            yield from each


def write_rows(path: Path, norms: RowNorms, data: PreparedData) -> None:
    """Write the rows of a batch as a parquet file, in one atomic step; see `probe_run`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from cowclip_merlin.workflows.prepared.counts import read_counts

    counts = [read_counts(data, field)["count"].to_numpy() for field in norms.fields]
    starts = np.cumsum([0, *map(len, counts)])
    table = pa.table(
        {
            "field": pa.array(np.array(norms.fields)[norms.field]).dictionary_encode(),
            "id": norms.id,
            "count": np.concatenate(counts)[starts[norms.field] + norms.id],
            "cnt": norms.cnt,
            "w_norm": norms.w_norm,
            "g_norm": norms.g_norm,
        }
    )
    with atomic_write(path) as temporary:
        pq.write_table(table, temporary)
