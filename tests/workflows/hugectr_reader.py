"""Opens prepared files as HugeCTR's C++ code does (23.12, 24.06, 25.03), with plain Python.

The rules come from file_list.hpp, file_source_parquet.cpp and metadata.cpp: which name leads to
which file, and what has to agree; and from dataframe_container.cu: a column of keys is one key per
row or a list of them. A broken rule is an error, as it is there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq


@dataclass(frozen=True)
class HugectrSource:
    """One split as HugeCTR sees it.

    Attributes:
        labels: columns by name.
        dense: columns by name.
        keys: columns by name; of lists, the keys of all rows, and where each row ends, [n + 1].
    """

    labels: dict[str, Any]
    dense: dict[str, Any]
    keys: dict[str, Any]


def open_source(
    file_list: str, slot_sizes: list[int], nnz_per_slot: list[int] | None = None
) -> HugectrSource:
    """Read a split from the working directory.

    Args:
        file_list: name of the list, as given to `DataReaderParams`.
        slot_sizes: as given to `DataReaderParams`.
        nnz_per_slot: as given to `DataReaderSparseParam`; None: 1 each.
    """
    names = _listed(file_list)
    folder = _up_to_last_slash(names[0])
    described = json.loads(Path(folder + "/_metadata.json").read_text(encoding="utf-8"))
    # By the name alone: metadata.cpp cuts off any folder.
    rows = {_basename(entry["file_name"]): entry["num_rows"] for entry in described["file_stats"]}
    for name, count in rows.items():
        if pq.read_metadata(f"{folder}//{name}").num_rows != count:
            raise ValueError(f"{name}: number of rows mismatch with _metadata.json")
    tables = []
    for name in names:
        table = pq.ParquetFile(name).read()
        if table.num_rows != rows[_basename(name)]:
            raise ValueError(f"{name}: {table.num_rows} rows, {rows[_basename(name)]} described")
        tables.append(table)
    whole = pa.concat_tables(tables)
    source = HugectrSource(
        labels=_columns(whole, described["labels"], pa.float32()),
        dense=_columns(whole, described["conts"], pa.float32()),
        keys=_columns(whole, described["cats"], pa.int64()),
    )
    nnz = nnz_per_slot or [1] * len(slot_sizes)
    for (name, keys), size, most in zip(source.keys.items(), slot_sizes, nnz, strict=True):
        if isinstance(keys, tuple):
            keys, ends = keys
            if np.diff(ends).max() > most:  # the memory of a row group has so many keys per row
                raise ValueError(f"{name}: more keys in a row than {most}")
        if len(keys) and (keys.min() < 0 or keys.max() >= size):
            raise ValueError(f"{name}: key outside of its slot of {size}")
    return source


def _listed(file_list: str) -> list[str]:
    with Path(file_list).open(encoding="utf-8") as file:
        count = int(file.readline())
        names = [file.readline().removesuffix("\n") for _ in range(count)]
    if count < 1 or names[0].rpartition(".")[2] != "parquet":
        raise ValueError(f"{file_list}: no parquet files in the list")
    return names


def _up_to_last_slash(path: str) -> str:
    """C++: `path.substr(0, path.find_last_of("/"))`, which is all of it if there is none."""
    head, slash, _ = path.rpartition("/")
    return head if slash else path


def _basename(path: str) -> str:
    return path.rpartition("/")[2]


def _columns(table: Any, described: list[dict[str, Any]], kind: Any) -> dict[str, Any]:
    found = {}
    for entry in described:
        field = table.schema.field(entry["index"])
        several = pa.types.is_list(field.type) and kind == pa.int64()
        value_type = field.type.value_type if several else field.type
        if (field.name, value_type) != (entry["col_name"], kind):
            raise ValueError(f"column {entry['index']} is {field}, {entry['col_name']} described")
        column = table.column(entry["index"]).combine_chunks()
        found[field.name] = _lists(column) if several else column.to_numpy()
    return found


def _lists(column: Any) -> tuple[Any, Any]:
    """Keys and offsets; the reader takes the buffers of cuDF and no masks of nulls."""
    if column.null_count or column.flatten().null_count:
        raise ValueError("a list with nulls")
    lengths = pa.compute.list_value_length(column).to_numpy()
    return column.flatten().to_numpy(), np.cumsum([0, *lengths])
