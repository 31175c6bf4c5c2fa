"""Write and read frequency counts: `counts/<field>.parquet` with columns id, value, count."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cowclip_merlin.errors import InputError
from cowclip_merlin.system.files import reading_parquet
from cowclip_merlin.workflows.raw.log_format import LogFormat

if TYPE_CHECKING:
    import pyarrow as pa

    from cowclip_merlin.workflows.prepared.folder import PreparedData

SPECIAL = {"pad": 0, "null": 1, "oov": 2}
FIRST_VALUE = 3

FieldCounts = dict[str, npt.NDArray[np.int64]]
"""Field -> how often each id from 3 on occurs in the fitted rows.

Columns that share a table are one field, with the name of the table."""


def cardinalities(categories: Path, log_format: LogFormat) -> dict[str, int]:
    """Return field -> rows of its embedding table, by the vocabularies in `categories/`."""
    import pyarrow.parquet as pq

    rows = {
        name: FIRST_VALUE + pq.read_metadata(categories / f"unique.{name}.parquet").num_rows
        for name in log_format.tables
    }
    return {field: rows[log_format.table_of(field)] for field in log_format.categorical}


def write_counts(folder: Path, log_format: LogFormat) -> FieldCounts:
    """Write the counts of every field from the files of Categorify in `categories/`.

    The ids 0, 1 and 2 (padding, missing and out of vocabulary) come first, without a value.
    Return how often each other id occurs, by field.
    """
    import pyarrow.parquet as pq

    (folder / "counts").mkdir()
    found = {}
    for field in log_format.tables:
        counts = _counts(folder / "categories", field)
        pq.write_table(counts, folder / "counts" / f"{field}.parquet")
        found[field] = counts["count"].to_numpy()[len(SPECIAL) :]
    return found


def _counts(categories: Path, field: str) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    meta = pq.read_table(categories / f"meta.{field}.parquet").to_pydict()
    seen = dict(zip(meta["kind"], meta["num_observed"], strict=True))
    known = pq.read_table(categories / f"unique.{field}.parquet", columns=[field, f"{field}_size"])
    special = pa.table(
        {
            "id": pa.array(SPECIAL.values(), pa.int64()),
            "value": pa.nulls(len(SPECIAL), pa.string()),
            "count": pa.array([int(seen[kind]) for kind in SPECIAL], pa.int64()),
        }
    )
    values = pa.table(
        {
            "id": pa.array(np.arange(FIRST_VALUE, FIRST_VALUE + known.num_rows), pa.int64()),
            "value": known[field].cast(pa.string()),
            "count": known[f"{field}_size"].cast(pa.int64()),
        }
    )
    return pa.concat_tables([special, values])


def hash_values(categories: Path, log_format: LogFormat) -> str:
    """Hash the value of each id from 3 on, for each field, as read from `categories/`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    lengths, text = hashlib.sha256(), hashlib.sha256()
    for field in log_format.tables:
        known = pq.read_table(categories / f"unique.{field}.parquet", columns=[field])
        lengths.update(f"{field} {known.num_rows} ".encode())
        for values in known[field].cast(pa.large_binary()).chunks:
            _, offsets, data = values.buffers()
            ends = np.frombuffer(offsets, np.int64)[values.offset :][: len(values) + 1]
            lengths.update(np.diff(ends).tobytes())
            text.update(memoryview(data)[ends[0] : ends[-1]])
    return hashlib.sha256(lengths.digest() + text.digest()).hexdigest()


def read_counts(data: PreparedData, field: str) -> pa.Table:
    """Read the counts of one field: an Arrow table of id, value and count, ordered by id.

    The counts of a field that shares a table are those of all its columns.

    Raises:
        InputError: if the field does not exist, or its file is missing or damaged.
    """
    import pyarrow.parquet as pq

    if field not in data.categorical:
        raise InputError(f"{data.path}: no field {field!r}; it has {', '.join(data.categorical)}")
    file = data.path / "counts" / f"{data.log_format.table_of(field)}.parquet"
    data.verify(file)
    with reading_parquet(file):
        return pq.read_table(file)


def value_to_id(data: PreparedData, field: str) -> dict[str, int]:
    """Return the id of each value of a field; all other values have id 2."""
    table = read_counts(data, field).slice(len(SPECIAL))
    return dict(zip(table["value"].to_pylist(), table["id"].to_pylist(), strict=True))


def id_to_value(data: PreparedData, field: str) -> list[str | None]:
    """Return the value of each id of a field; None for padding, missing and out of vocabulary."""
    return read_counts(data, field)["value"].to_pylist()
