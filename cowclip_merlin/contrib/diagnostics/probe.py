"""Measure norms and clip factors of a batch's rows by one more forward and backward pass.

The probe changes no weight. With `update="exact"`, it first brings the batch's rows up to date, as
the next step would do, with the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from cowclip_merlin import choices, compat
from cowclip_merlin import clip as clips
from cowclip_merlin.batch import Batch
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import (
    Data,
    load_split_to_device,
    open_train_columns,
    steps_per_epoch,
    usual_generator,
)
from cowclip_merlin.models import CTRModel, logits
from cowclip_merlin.models.ctr_model import attached, find_cowclip
from cowclip_merlin.models.multi_task import losses_of
from cowclip_merlin.optimizer.embedding_tables import looks_like_table
from cowclip_merlin.optimizer.keras_update import clips_whole_table, rows_to_clip
from cowclip_merlin.optimizer.unique_rows import sum_duplicates
from cowclip_merlin.system.files import atomic_write, check_writable
from cowclip_merlin.tables import TableLayout
from cowclip_merlin.targets import only_clicks
from cowclip_merlin.training.build import build_model, build_optimizer
from cowclip_merlin.training.run import check_sizes, set_up_tensorflow
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.training.train_step import make_train_step
from cowclip_merlin.types import Gradient, KerasOptimizer, Tensor, Variable

if TYPE_CHECKING:
    from cowclip_merlin.kernels.interface import UniqueRows
    from cowclip_merlin.loading.row_order import PackedBatch
    from cowclip_merlin.optimizer import CowClip
    from cowclip_merlin.workflows import PreparedData

tf = compat.tensorflow()


@dataclass(frozen=True, kw_only=True)
class RowNorms:
    """The distinct rows of one batch, sorted by field and id.

    Attributes:
        fields: names of the fields.
        row: number of the row in a fused table, int64 [u].
        field: index of the row's field in `fields`, int64 [u].
        id: the row's id in its field, int64 [u].
        cnt: occurrences in the batch (`cnt` in Algorithm 1), int64 [u].
        w_norm: `||w||`, float32 [u].
        g_norm: `||g||` of the data gradient summed over the occurrences, without L2 and before
            the clip, float32 [u].
        l2_g_norm: `||g + 2 * l2 * w||`, the norm that the clip bounds, float32 [u].
        factor: factor in [0, 1] by which the clip multiplies the gradient, float32 [u]; NaN
            with "clippy", which does not clip gradients.
    """

    fields: tuple[str, ...]
    row: npt.NDArray[np.int64]
    field: npt.NDArray[np.int64]
    id: npt.NDArray[np.int64]
    cnt: npt.NDArray[np.int64]
    w_norm: npt.NDArray[np.float32]
    g_norm: npt.NDArray[np.float32]
    l2_g_norm: npt.NDArray[np.float32]
    factor: npt.NDArray[np.float32]

    def __len__(self) -> int:
        """Number of distinct rows."""
        return len(self.cnt)


def row_norms_by_field(
    layout: TableLayout,
    rows: npt.NDArray[np.int64],
    cnt: npt.NDArray[np.int64],
    values: npt.NDArray[np.float32],
) -> RowNorms:
    """Convert distinct rows of a fused table, their `cnt` and four `values` to rows of fields.

    >>> layout = TableLayout({"a": 2, "b": 3})
    >>> norms = row_norms_by_field(layout, np.array([4, 0]), np.array([1, 2]), np.ones((4, 2)))
    >>> norms.field.tolist(), norms.id.tolist(), norms.cnt.tolist()
    ([0, 1], [0, 2], [2, 1])
    """
    order = np.argsort(rows)
    rows = rows[order]
    field = layout.field_of_row(rows)
    return RowNorms(
        fields=tuple(layout.fields),
        row=rows,
        field=field,
        id=rows - np.array(layout.offsets)[field],
        cnt=cnt[order].astype(np.int64),
        **dict(zip(("w_norm", "g_norm", "l2_g_norm", "factor"), values[:, order])),
    )


Measured: TypeAlias = "tuple[Tensor, Tensor, Tensor]"
"""What `measure_rows` returns."""


def gradient_norms(
    model: CTRModel, optimizer: KerasOptimizer, inputs: dict[str, Tensor], label: Tensor
) -> RowNorms:
    """Compute the norms of a batch's embedding rows and of their gradients, before the step.

    The loss is the mean binary cross-entropy over the batch. The norms leave out the 1-dimensional
    weights of the wide part, unless the clip includes them in a norm.

    Args:
        model: one of the five models, with its variables created.
        optimizer: CowClip, or an optimizer that wraps one.
        inputs: a batch, per column or stacked; see `models.Columns.stack`.
        label: 0 or 1, [b]; of several targets [b, T], where a missing label is NaN.

    Raises:
        InputError: if the optimizer is not a CowClip and wraps none.

    Example:
        >>> from cowclip_merlin import optimizer
        >>> from cowclip_merlin.bench import random_data
        >>> model = random_data.random_model("deepfm", random_data.criteo_fields(200), mlp=(8,))
        >>> rows = random_data.random_rows(4, random_data.criteo_fields(200))
        >>> batch = {"categorical": rows.ids, "continuous": rows.continuous}
        >>> norms = gradient_norms(model, optimizer.CowClip(), batch, rows.label)
        >>> norms.fields[0], int(norms.cnt.sum())
        ('C1', 104)
    """
    label = tf.cast(label, tf.float32)
    if only_clicks(model.blocks[0].columns.targets):
        label = tf.reshape(label, [-1])
    inputs = {name: tf.convert_to_tensor(value) for name, value in inputs.items()}

    @tf.function(autograph=False)
    def probe(inputs: dict[str, Tensor], label: Tensor) -> Measured:
        return measure_rows(model, optimizer, inputs, label)

    with attached(model, optimizer):
        return to_row_norms(model, probe(inputs, label))


def make_probe(
    model: CTRModel, optimizer: KerasOptimizer, data: Data
) -> Callable[[PackedBatch], RowNorms]:
    """Return a compiled function that maps a batch of `data` to its `RowNorms`.

    The optimizer is attached to the model, whose variables are created.
    """

    @tf.function(input_signature=[data.signature], autograph=False)
    def probe(batch: PackedBatch) -> Measured:
        columns = data.unpack(batch)
        return measure_rows(model, optimizer, columns, columns.labels, columns.weights)

    return lambda batch: to_row_norms(model, probe(batch))


def measure_rows(
    model: CTRModel,
    optimizer: KerasOptimizer,
    inputs: Batch | dict[str, Tensor],
    label: Tensor,
    weights: Tensor | None = None,
) -> Measured:
    """Measure the rows of a batch, as tensors.

    A clip of updates, such as Clippy, acts after the optimizer's step, so its factors are not
    known yet: they are NaN.

    Returns:
        Row numbers in a fused table, int64 [u]; occurrences, int64 [u]; `w_norm`, `g_norm`,
        `l2_g_norm` and `factor`, float32 [4, u].
    """
    cowclip = find_cowclip(optimizer)
    if cowclip is None:
        raise InputError(f"{type(optimizer).__name__} wraps no CowClip; give a CowClip optimizer")
    every = list(model.blocks[0].embedding.tables)
    # The optimizer does not see a frozen table.
    numbers = [number for number, table in enumerate(every) if table.trainable]
    embeddings = [every[number] for number in numbers]
    tables = [*embeddings, *_other_clipped(model, cowclip, embeddings)]
    slices = _gradients(model, optimizer, tables, inputs, label, weights)
    unique = [sum_duplicates(each) for each in slices]
    factors = _factors(tables, unique, cowclip)
    layer = model.blocks[0].embedding
    rows = [layer.whole_rows(number, u.ids) for number, u in zip(numbers, unique)]
    cnt = [tf.cast(u.cnt, tf.int64) for u, _ in zip(unique, embeddings)]
    norms = [_norms(u, t, f, cowclip) for u, t, f in zip(unique, embeddings, factors)]
    return tf.concat(rows, 0), tf.concat(cnt, 0), tf.concat(norms, 1)


def to_row_norms(model: CTRModel, measured: Measured) -> RowNorms:
    """Convert the tensors of `measure_rows` to arrays by field."""
    return row_norms_by_field(model.blocks[0].embedding.layout, *(x.numpy() for x in measured))


def _other_clipped(
    model: CTRModel, cowclip: CowClip, embeddings: Sequence[Variable]
) -> list[Variable]:
    """List the other tables that the clip includes, which count in a global norm."""
    known = {table.ref() for table in embeddings}
    others = [v for v in model.trainable_variables if looks_like_table(v) and v.ref() not in known]
    return [table for table in others if not cowclip.tables.skips(table)]


def _gradients(
    model: CTRModel,
    optimizer: KerasOptimizer,
    tables: Sequence[Variable],
    inputs: Batch | dict[str, Tensor],
    label: Tensor,
    weights: Tensor | None,
) -> list[Gradient]:
    # Scaled as in the step: half-precision layers lose small gradients of an unscaled loss.
    scale = tf.cast(getattr(optimizer, "loss_scale", 1.0), tf.float32)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(tables)
        columns = model.blocks[0].columns
        targets = columns.targets
        # What a step would count or average, a probe must leave alone.
        plain = model.blocks[0].architecture.has_plain_hidden_layers
        z = logits(model, inputs, training=plain)
        z = z[:, 0] if only_clicks(targets) else z
        offsets = inputs.offsets if isinstance(inputs, Batch) else None
        losses = losses_of(targets, columns.scales)(label, z if offsets is None else z - offsets)
        if weights is None:
            loss = tf.reduce_mean(losses)
        else:
            loss = tf.math.divide_no_nan(tf.reduce_sum(losses * weights), tf.reduce_sum(weights))
        loss *= scale
    found = tape.gradient(loss, tables)
    return [tf.IndexedSlices(g.values / scale, g.indices, g.dense_shape) for g in found]


def _factors(
    tables: Sequence[Variable], unique: Sequence[UniqueRows], cowclip: CowClip
) -> list[Tensor]:
    """Compute the factors of the batch's rows, one tensor per table; 1 in unclipped tables."""
    config = cowclip.config
    factors = [tf.ones_like(u.g[:, 0]) for u in unique]
    chosen = [i for i, table in enumerate(tables) if not cowclip.tables.skips(table)]
    if not chosen:
        return factors
    if choices.CLIPS[config.clip].acts_on == "update":
        clipped = set(chosen)
        return [f * np.nan if i in clipped else f for i, f in enumerate(factors)]
    layouts = [cowclip.tables.layout_of(table) for table in tables]
    rows = [rows_to_clip(unique[i], tables[i], config, layouts[i]) for i in chosen]
    found = clips.gradient_factors(rows, config)
    for i, factor in zip(chosen, found):
        whole = clips_whole_table(config)
        factors[i] = tf.gather(factor, unique[i].ids) if whole else factor
    return factors


def _norms(unique: UniqueRows, table: Variable, factor: Tensor, cowclip: CowClip) -> Tensor:
    w = tf.gather(table, unique.ids)
    with_l2 = unique.g + 2 * cowclip.config.l2 * w
    return tf.stack([*map(clips.row_norms, (w, unique.g, with_l2)), factor])


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
    loss_sum = tf.Variable(0.0, dtype="float64", trainable=False)
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

    counts = [read_counts(data, field, ["count"])["count"].to_numpy() for field in norms.fields]
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
