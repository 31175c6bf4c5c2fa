"""Read vectors for the ids of a column, such as embeddings of another model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cowclip_merlin.addresses import FilePath
from cowclip_merlin.errors import InputError
from cowclip_merlin.types import ArrowColumn
from cowclip_merlin.workflows.prepared.counts import FIRST_VALUE, SPECIAL, read_counts
from cowclip_merlin.workflows.raw.readers import check_columns, open_parquet
from cowclip_merlin.workflows.raw.values.multi_values import vector_damage, vectors_of_values
from cowclip_merlin.workflows.raw.values.value_text import text_of_values

if TYPE_CHECKING:
    import pyarrow as pa

    from cowclip_merlin.workflows.prepared.folder import PreparedData


@dataclass(frozen=True, kw_only=True)
class PretrainedRows:
    """Vectors for some ids of a column.

    Attributes:
        column: the categorical column.
        ids: of the prepared folder, int64 [k]; each occurs once.
        vectors: float32 [k, d].
        others: vectors in the file whose value has no id.
        known: values of the column that have an id.
    """

    column: str
    ids: npt.NDArray[np.int64]
    vectors: npt.NDArray[np.float32]
    others: int
    known: int

    def __str__(self) -> str:
        """Describe in one line how many ids have a vector."""
        return (
            f"pretrained embeddings of {self.column}: for {len(self.ids):,} of {self.known:,} "
            f"values; the others start at random; {self.others:,} vectors are of values without "
            "an id"
        )


def read_pretrained(data: PreparedData, column: str, file: FilePath, dim: int) -> PretrainedRows:
    """Read the vectors of a parquet file, and find the ids of their values."""
    vocabulary = read_counts(data, column)["value"].slice(len(SPECIAL))
    table = _read(file, column)
    vectors = _vectors(table, column, file, dim)
    ids = _ids(table[column], vocabulary, file, column)
    found = ids >= 0
    return PretrainedRows(
        column=column,
        ids=ids[found],
        vectors=vectors[found],
        others=int((~found).sum()),
        known=len(vocabulary),
    )


def _read(file: FilePath, column: str) -> pa.Table:
    parquet = open_parquet(file)
    check_columns(parquet.schema_arrow.names, [column], file)
    return parquet.read()


def _vectors(table: pa.Table, column: str, file: FilePath, dim: int) -> npt.NDArray[np.float32]:
    """Return the only column of lists, [n, dim]."""
    import pyarrow.types as types

    tests = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    lists = [
        each.name
        for each in table.schema
        if each.name != column and any(test(each.type) for test in tests)
    ]
    if len(lists) != 1:
        found = ", ".join(lists) or "none"
        raise InputError(
            f"{file}: needs {column!r} and one column of lists of numbers; found {found}"
        )
    (name,) = lists
    vectors, good = vectors_of_values(table[name], "", dim, where=f"{file}: column {name!r}")
    if not good.all():
        row = int(np.argmin(good))
        raise InputError(f"{file}: row {row + 1}: {_damage(table[name][row].as_py(), name, dim)}")
    return vectors.flatten().to_numpy().reshape(-1, dim)


def _damage(value: list[object] | None, name: str, dim: int) -> str:
    """Say what is wrong with a vector."""
    if value and len(value) != dim:
        remedy = f"use `embedding_dim` {len(value)}, or vectors of this length"
        return f"{name} has {len(value)} numbers, but an embedding row has {dim}; {remedy}"
    return f"{vector_damage(name, value, '', dim)}; repair this row"


def _ids(
    values: ArrowColumn, vocabulary: ArrowColumn, file: FilePath, column: str
) -> npt.NDArray[np.int64]:
    """Return the id of each value, -1 without one; refuse a value that occurs twice."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = text_of_values(values, where=f"{file}: column {column!r}").cast(pa.large_string())
    places = pc.index_in(texts, value_set=vocabulary.cast(pa.large_string()))
    ids = np.asarray(pc.fill_null(places, -1 - FIRST_VALUE)).astype(np.int64) + FIRST_VALUE
    ids = np.where(np.asarray(texts.is_null()), -1, ids)
    known, counts = np.unique(ids[ids >= 0], return_counts=True)
    if (counts > 1).any():
        twice = vocabulary[int(known[counts.argmax()]) - FIRST_VALUE].as_py()
        raise InputError(f"{file}: {column} {twice!r} occurs twice; give each value one vector")
    return ids
