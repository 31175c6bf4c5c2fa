"""Build a run's model and optimizer from its settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from cowclip_merlin import choices, compat, workers
from cowclip_merlin.addresses import path_of
from cowclip_merlin.errors import InputError
from cowclip_merlin.scaling import Hyperparameters
from cowclip_merlin.system.machine import bytes_left
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.workers.group import shard_rows

if TYPE_CHECKING:
    from merlin.schema import Schema

    from cowclip_merlin.models import CTRModel
    from cowclip_merlin.optimizer import CowClip
    from cowclip_merlin.training.stopping.falling_rates import FallingRates
    from cowclip_merlin.workflows import PreparedData
    from cowclip_merlin.workflows.prepared.pretrained import PretrainedRows


def choose_device(device: str) -> str:
    """Make TensorFlow use the GPU or the CPU; return "gpu" or "cpu".

    Args:
        device: one of `choices.DEVICES`.

    Raises:
        InputError: if `device` is "gpu" and TensorFlow sees no GPU, or if it is "cpu" and
            TensorFlow has started with a GPU.
    """
    tf = compat.tensorflow()
    if device == "cpu":
        try:
            tf.config.set_visible_devices([], "GPU")
        except RuntimeError as error:
            raise InputError(
                "`device` cpu: TensorFlow has started with a GPU in this process; set "
                'CUDA_VISIBLE_DEVICES="" before it starts'
            ) from error
        return "cpu"
    gpus = tf.config.list_physical_devices("GPU")
    if device == "gpu" and not gpus:
        raise InputError(
            "`device` gpu: TensorFlow sees no GPU; install the GPU build and its CUDA libraries, "
            "or use `device` cpu"
        )
    for gpu in gpus:
        with suppress(
            RuntimeError, ValueError
        ):  # TensorFlow has started, or its GPU memory is partitioned
            tf.config.experimental.set_memory_growth(gpu, True)
    return "gpu" if gpus else "cpu"


def numbers_per_id(optimizer: str, d: int, *, counts_steps: bool) -> int:
    """Return how many numbers of 4 bytes an id of a table has: weights and optimizer state.

    Args:
        optimizer: one of `choices.OPTIMIZERS`.
        d: length of a row.
        counts_steps: whether rows can miss steps, as those of Adam with `update="exact"`.

    >>> [numbers_per_id(x, 16, counts_steps=False) for x in ("adam", "adagrad", "rowwise_adagrad")]
    [48, 32, 17]
    """
    state = {"adam": 2 * d, "adagrad": d, "rowwise_adagrad": 1}[optimizer]
    return d + state + int(counts_steps)


def check_table_memory(settings: RunSettings, data: PreparedData, device: str) -> None:
    """Check that the tables fit into the memory of this process, before they are made.

    TensorFlow ends the process if they do not. This counts only the tables and what the optimizer
    has for each of their numbers. So a run that passes may still need more memory than there is.

    Args:
        settings: the run's settings.
        data: the prepared folder.
        device: "gpu" or "cpu"; only the CPU's memory is checked.

    Raises:
        InputError: if they do not fit.
    """
    group, left = workers.current(), bytes_left()
    if device != "cpu":
        return
    rows = sum(data.tables.values())
    if group and settings.tables == "sharded":
        rows = shard_rows(rows, group.rank, group.size)
    counts_steps = settings.optimizer == "adam" and settings.update == "exact"
    numbers = numbers_per_id(settings.optimizer, settings.embedding_dim, counts_steps=counts_steps)
    needed = 4 * numbers * rows
    if needed > left:
        raise InputError(
            f"not enough memory: the tables of {data.path} take {needed / 1e9:.2f} GB with the "
            f"optimizer's state, and this process may take {left / 1e9:.2f} GB more; use `tables` "
            "sharded with more `workers`, a smaller `embedding_dim`, or fewer ids"
        )


def build_model(settings: RunSettings, values: Hyperparameters, data: PreparedData) -> CTRModel:
    """Build the Merlin model of a run and initialize its variables from the seed."""
    schema = data.schema
    for name, combiner in settings.combiners(data.log_format.multi).items():
        schema[name] = schema[name].with_properties({"combiner": combiner})
    several = settings.multi_task_of(data.targets)
    return build_model_of(settings, values, schema, tables=settings.tables, **several)


def read_pretrained_rows(settings: RunSettings, data: PreparedData) -> list[PretrainedRows]:
    """Read the vectors that embeddings start with; check the columns to freeze, too.

    Raises:
        InputError: if a setting names another column, or a file is wrong.
    """
    from cowclip_merlin.workflows.prepared.pretrained import read_pretrained

    for name in (*settings.frozen, *settings.pretrained):
        option = "freeze" if name in settings.frozen else "pretrained"
        if name not in data.categorical:
            known = ", ".join(data.categorical)
            raise InputError(
                f"`{option}_embeddings`: no categorical column {name!r} in {data.path}; there are "
                f"{known}"
            )
    _check_tables(settings, data)
    dim = settings.embedding_dim
    return [read_pretrained(data, c, path_of(file), dim) for c, file in settings.pretrained.items()]


def _check_tables(settings: RunSettings, data: PreparedData) -> None:
    """Refuse to freeze all tables, and two files for one table.

    Raises:
        InputError: if the settings do so.
    """
    table_of = data.log_format.table_of
    if set(data.tables) <= {table_of(name) for name in settings.frozen}:
        raise InputError(
            "`freeze_embeddings` names the columns of all tables, and leaves no embeddings to "
            "train; leave one out"
        )
    known: dict[str, str] = {}
    for name in settings.pretrained:
        other = known.setdefault(table_of(name), name)
        if other != name:
            raise InputError(
                f"`pretrained_embeddings`: {other!r} and {name!r} share a table; give it one file"
            )


def set_pretrained_rows(model: CTRModel, pretrained: Sequence[PretrainedRows]) -> None:
    """Let the embeddings of a new model start with these vectors."""
    tf, block = compat.tensorflow(), model.blocks[0]
    table_of = dict(zip(block.columns.fields, block.columns.table_of_field, strict=True))
    for rows in pretrained:
        ids, vectors = tf.constant(rows.ids), tf.constant(rows.vectors)
        block.embedding.set_rows(table_of[rows.column], ids, vectors)


def build_model_of(
    settings: RunSettings, values: Hyperparameters, schema: Schema, **more: Any
) -> CTRModel:
    """Build a Merlin model of any schema, and initialize its variables from the seed.

    Args:
        settings: settings of the model.
        values: the scaled hyper-parameters.
        schema: the columns.
        **more: other settings of `models.Architecture`: of the tables, and of several targets.
    """
    from cowclip_merlin import models
    from cowclip_merlin.models.hidden.layers import computing_in

    if settings.model in choices.CROSSED:
        more["cross_layers"] = settings.cross_layers
    with computing_in(settings.precision):
        model = models.MODELS[settings.model](
            schema,
            embedding_dim=settings.embedding_dim,
            mlp=settings.mlp,
            activation=settings.activation,
            dropout=settings.dropout,
            batch_norm=settings.batch_norm,
            continuous=settings.continuous,
            init_std=values.init_std,
            seed=settings.seed,
            freeze_embeddings=settings.frozen,
            **more,
        )
    model.blocks[0].jit_compile = settings.jit_compile
    return model


def build_optimizer(
    settings: RunSettings,
    values: Hyperparameters,
    data: PreparedData,
    *,
    steps: int,
    falling: FallingRates | None = None,
) -> CowClip:
    """Build CowClip with an inner optimizer for the embeddings and one for the dense weights.

    Args:
        settings: the run's settings.
        values: the scaled hyper-parameters.
        data: the prepared folder, which gives the fields of fused tables. The optimizer finds
            the field of any other table when the model is attached to it.
        steps: steps per epoch, to convert the warm-up from epochs to steps.
        falling: how the rates fall; None: they do not.

    Raises:
        InputError: if the warm-up takes 2**31 steps or more.
    """
    from cowclip_merlin.optimizer.inner_optimizers import warmup_steps

    fields = data.tables if settings.tables == "fused" else None
    warmup = warmup_steps(values, steps)
    return build_optimizer_of(settings, values, fields=fields, warmup_steps=warmup, falling=falling)


def build_optimizer_of(
    settings: RunSettings,
    values: Hyperparameters,
    *,
    fields: Mapping[str, int] | None,
    warmup_steps: int,
    varying: bool = False,
    falling: FallingRates | None = None,
) -> CowClip:
    """Build CowClip as `build_optimizer` does, without a prepared folder.

    Args:
        settings: settings of the optimizers and the clip.
        values: the scaled hyper-parameters.
        fields: rows of each field of a fused table; None for other tables.
        warmup_steps: steps over which the dense learning rate rises from 0.
        varying: whether Adam's betas may change from step to step.
        falling: how the rates fall; None: they do not.
    """
    from cowclip_merlin.optimizer import CowClip
    from cowclip_merlin.optimizer.inner_optimizers import optimizers_of
    from cowclip_merlin.optimizer.row_optimizers import VaryingAdam

    how = {"adam": VaryingAdam if varying else None, "schedule": falling and falling.of}
    return CowClip(
        *optimizers_of(values, warmup_steps, **how),
        **values.of_rows,
        update=settings.update,
        backend=settings.backend,
        clip=settings.effective_clip,
        embeddings=["embeddings"],
        fields=fields,
        link_rates=False,  # a run sets both
    )
