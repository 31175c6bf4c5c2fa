"""The embedding layers of a model: which kind its settings ask for, and how they read a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cowclip_merlin.batch import Ids, Requests
from cowclip_merlin.compat.tensorflow_names import variable_names
from cowclip_merlin.errors import InputError
from cowclip_merlin.models.columns import Columns
from cowclip_merlin.models.embedding.fused import FusedEmbedding
from cowclip_merlin.models.embedding.growing import GrowingEmbedding, look_up_requests
from cowclip_merlin.models.embedding.sharded import ShardedEmbedding, look_up_shards
from cowclip_merlin.types import Tensor

if TYPE_CHECKING:
    from cowclip_merlin.models.architecture import Architecture


def embedding_layer(
    columns: Columns, architecture: Architecture, dim: int, *, std: float, prefix: str = ""
) -> FusedEmbedding | GrowingEmbedding:
    """Make a layer of embeddings, or with a prefix one of first-order weights.

    Args:
        columns: columns of the input.
        architecture: settings of the model.
        dim: length of a row.
        std: standard deviation of the initial rows.
        prefix: of "embeddings" in the names of the variables.

    Raises:
        InputError: if `freeze_embeddings` names no column, or leaves no embeddings to train.
    """
    how: dict[str, Any] = {"std": std, "seed": architecture.seed, "prefix": prefix}
    if architecture.tables == "growing":
        return GrowingEmbedding(architecture.capacity, dim, **how)
    kind = ShardedEmbedding if architecture.tables == "sharded" else FusedEmbedding
    rows, apart = columns.table_rows, _frozen(columns, architecture.freeze_embeddings)
    how["field_of_column"] = columns.table_of_field
    if architecture.tables == "per_field":
        names = {name: f"{each}_{prefix}embeddings" for name, each in variable_names(rows).items()}
        how["tables"] = {names[name]: [name] for name in rows}
        how["frozen"] = [names[name] for name in rows if name in apart]
    elif apart:
        how["tables"] = {
            f"{prefix}embeddings": [name for name in rows if name not in apart],
            f"{prefix}apart_embeddings": [name for name in rows if name in apart],
        }
        how["frozen"] = [f"{prefix}apart_embeddings"]
    if prefix:  # first-order weights are divided in the same way, but all of them train
        how["frozen"] = ()
    return kind(rows, dim, **how)


def _frozen(columns: Columns, names: Sequence[str]) -> set[str]:
    """Return the tables of the columns whose embeddings stay as they start."""
    for name in names:
        if name not in columns.fields:
            known = ", ".join(columns.fields)
            raise InputError(
                f"freeze_embeddings: no categorical column {name!r}; there are {known}"
            )
    found = {columns.tables.get(name, name) for name in names}
    if found == set(columns.table_rows):
        raise InputError(
            "freeze_embeddings names the columns of all tables, and leaves no embeddings to "
            "train; leave one out"
        )
    return found


def look_up(
    layers: Sequence[FusedEmbedding | GrowingEmbedding],
    ids: Ids,
    training: bool,
    requests: Requests | None = None,
) -> list[Tensor]:
    """Look up the row of each id, [b, F, d], or [m, d] with multi-valued columns, per layer.

    Args:
        layers: of one model.
        ids: of a batch.
        training: as in Keras.
        requests: of the ids, if each worker has a part of a growing table.
    """
    if requests is not None:
        return look_up_requests(layers, requests, training)
    if layers[0].is_shard:
        return look_up_shards(layers, ids, training)
    return [layer(ids, training=training) for layer in layers]
