"""Write and extend the files of NVTabular's Categorify; on a GPU, count the values for them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cowclip_merlin.workflows.prepared.counts import FIRST_VALUE, SPECIAL
from cowclip_merlin.workflows.raw.values.value_text import in_chunks

if TYPE_CHECKING:
    from collections.abc import Iterable

    import cudf
    import dask.dataframe as dd
    from dask.delayed import Delayed


_MERGED_AT_ONCE = 8
"""Partitions whose counts one task adds up."""


def fit_vocabularies(
    ddf: dd.DataFrame, names: Sequence[str], folder: Path, threshold: int
) -> Delayed:
    """Return a `dask.delayed` that counts all partitions, writes the files and returns their paths.

    Args:
        ddf: Dask dataframe of cuDF.
        names: columns.
        folder: existing folder of the files.
        threshold: values seen less often get no id.
    """
    from dask import delayed

    tables = {name: [name] for name in names}
    counts = [delayed(count_values)(part, tables) for part in ddf.to_delayed()]
    return write_vocabularies(counts, names, folder, threshold)


def write_vocabularies(
    counts: Sequence[Delayed], names: Sequence[str], folder: Path, threshold: int
) -> Delayed:
    """Return a `dask.delayed` that adds up counts, writes the files and returns their paths.

    Args:
        counts: a `dask.delayed` result of `count_values` for each partition.
        names: vocabularies that were counted.
        folder: existing folder of the files.
        threshold: values seen less often get no id.
    """
    from dask import delayed

    while len(counts) > 1:
        groups = range(0, len(counts), _MERGED_AT_ONCE)
        counts = [delayed(add_counts)(counts[i : i + _MERGED_AT_ONCE]) for i in groups]
    write = delayed(write_vocabulary)
    return delayed(dict)(
        [(name, write(counts[0][name], name, str(folder), threshold)) for name in names]
    )


def count_values(frame: cudf.DataFrame, tables: Mapping[str, Sequence[str]]) -> dict[str, pa.Table]:
    """Count the values of a cuDF frame: vocabulary -> Arrow table of value and count.

    Missing values are counted as one null.

    Args:
        frame: the rows.
        tables: vocabulary -> the columns that have its values.
    """
    return {
        name: _sum_of([_counts_of(frame[column]) for column in columns])
        for name, columns in tables.items()
    }


def _counts_of(column: cudf.Series) -> pa.Table:
    counts = column.rename("value").value_counts(dropna=False).reset_index()
    value, count = counts.to_arrow(preserve_index=False).columns
    if pa.types.is_null(value.type):
        value = value.cast(pa.string())
    return with_large_text(pa.table({"value": value, "count": count.cast(pa.int64())}))


def with_large_text(counts: pa.Table) -> pa.Table:
    """Return a table of value and count whose texts may be joined to more than 2 GiB."""
    if not pa.types.is_string(counts["value"].type):
        return counts
    return counts.set_column(0, "value", counts["value"].cast(pa.large_string()))


def add_counts(parts: Sequence[dict[str, pa.Table]]) -> dict[str, pa.Table]:
    """Add up the counts of several partitions."""
    return {name: _sum_of([part[name] for part in parts]) for name in parts[0]}


def _sum_of(counts: Sequence[pa.Table]) -> pa.Table:
    """Add up Arrow tables of value and count."""
    if len(counts) == 1:
        return counts[0]
    # Counts that came over a network are not aligned in memory; the combined copy is.
    table = pa.concat_tables(counts).combine_chunks()
    sums = table.group_by("value").aggregate([("count", "sum")])
    return sums.select(["value", "count_sum"]).rename_columns(["value", "count"])


def write_vocabulary(counts: pa.Table, name: str, folder: str, threshold: int) -> str:
    """Write the files of a vocabulary; return the path of `unique.<name>.parquet`.

    Values have descending frequency; ties are sorted by value.

    Args:
        counts: Arrow table of value and count.
        name: the vocabulary's, which is that of a column.
        folder: existing folder of the files.
        threshold: values seen less often get no id.
    """
    is_missing = pc.is_null(counts["value"])
    known = counts.filter(pc.invert(is_missing))
    is_rare = pc.less(known["count"], threshold)
    missing = sum_of_counts(counts.filter(is_missing))
    kept = by_frequency(known.filter(pc.invert(is_rare)))
    return write_values(kept, known.filter(is_rare), name, folder, missing=missing)


def by_frequency(counts: pa.Table) -> pa.Table:
    """Sort values by descending frequency, and ties by value; `string` becomes `large_string`."""
    counts = with_large_text(counts)
    return counts.take(pc.sort_indices(counts, [("count", "descending"), ("value", "ascending")]))


def write_values(
    kept: pa.Table, rare: pa.Table, name: str, folder: str, *, missing: int, lost: int = 0
) -> str:
    """Write `unique.<name>.parquet` and `meta.<name>.parquet`; return the path of the first.

    Rare values go to `rare.<name>.parquet`, so that `extend` can go on counting them.

    Args:
        kept: Arrow table of value and count, in the order of the ids.
        rare: likewise, the values without an id.
        name: the vocabulary's.
        folder: existing folder of the files.
        missing: number of missing values.
        lost: number of rare values that are not in `rare`.
    """
    path = f"{folder}/unique.{name}.parquet"
    has_rows = kept.num_rows or rare.num_rows
    empty = pa.Table.from_pandas(empty_vocabulary(name))
    pq.write_table(_with_ids(_in_chunks(kept), name) if has_rows else empty, path)
    if rare.num_rows:
        pq.write_table(_in_chunks(by_frequency(rare)), f"{folder}/rare.{name}.parquet")
    observed = [lost + sum_of_counts(rare), sum_of_counts(kept)]
    meta = {
        "kind": [*SPECIAL, "unique"],
        "offset": [*SPECIAL.values(), FIRST_VALUE],
        "num_indices": [1] * len(SPECIAL) + [kept.num_rows],
        "num_observed": [0, missing, *observed],
    }
    pd.DataFrame(meta).to_parquet(f"{folder}/meta.{name}.parquet")
    return path


def _in_chunks(counts: pa.Table) -> pa.Table:
    values = counts["value"]
    if not pa.types.is_large_string(values.type):
        return counts
    return counts.set_column(0, "value", in_chunks(values.combine_chunks()))


def sum_of_counts(counts: pa.Table) -> int:
    """Return the sum of the counts of an Arrow table of value and count."""
    return pc.sum(counts["count"], min_count=0).as_py()


def _with_ids(known: pa.Table, name: str) -> pa.Table:
    """Return values and counts under NVTabular's names, with the ids as index for pandas.

    pandas describes the first row only: it would make a Python string of every value.
    """
    first = known.slice(0, 1)
    ids = pd.RangeIndex(FIRST_VALUE, FIRST_VALUE + first.num_rows)
    values = first["value"].to_pandas().to_numpy()
    frame = pd.DataFrame({name: values, f"{name}_size": first["count"].to_numpy()}, index=ids)
    described = pa.Table.from_pandas(frame)
    if not known.num_rows:
        return described
    about = json.loads(described.schema.metadata[b"pandas"])
    about["index_columns"][0]["stop"] = FIRST_VALUE + known.num_rows
    found = known.select(["value", "count"]).rename_columns(described.column_names)
    return found.replace_schema_metadata({"pandas": json.dumps(about)})


def empty_vocabulary(name: str) -> pd.DataFrame:
    """Return the vocabulary of a column without values."""
    return pd.DataFrame({name: pd.array([], "string"), f"{name}_size": np.array([], np.int64)})


_SCHEMA = pa.schema({"value": pa.large_string(), "count": pa.int64()})


def extend_vocabularies(before: Path, folder: Path, names: Iterable[str], threshold: int) -> int:
    """Put the new values of a log behind the values of another folder's vocabularies.

    Values keep their ids, and counts add up. A value that was too rare in either log gets an id if
    it is frequent enough in both together. New values have descending frequency; ties are sorted
    by value.

    Args:
        before: `categories/` of the folder to extend.
        folder: `categories/` of the log, fitted with the threshold 0; its files are replaced.
        names: of the vocabularies.
        threshold: values seen less often get no id.

    Returns:
        How many values of the earlier log begin to count again, because its folder does not have
        its rare values.
    """
    return sum(_extend(before, folder, name, threshold) for name in names)


def _extend(before: Path, folder: Path, name: str, threshold: int) -> int:
    known, rare = _values(before, name), _rare_values(before, name)
    first, others = joined(known, rare, _values(folder, name))
    is_rare = pc.less(others["count"], threshold)
    kept = pa.concat_tables([first, by_frequency(others.filter(pc.invert(is_rare)))])
    missing = _observed(before, name, "null") + _observed(folder, name, "null")
    lost = _observed(before, name, "oov") - sum_of_counts(rare)
    write_values(kept, others.filter(is_rare), name, str(folder), missing=missing, lost=lost)
    return lost


def joined(known: pa.Table, rare: pa.Table, new: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Add up counts: those of the known values in their order, and those of all others.

    Args:
        known: Arrow table of value and count.
        rare: likewise, of other values.
        new: likewise, of any values.

    >>> table = lambda **counts: pa.table([list(counts), list(counts.values())], schema=_SCHEMA)
    >>> first, others = joined(table(b=2, a=5), table(c=1), table(c=1, b=4, d=3))
    >>> first.to_pydict()
    {'value': ['b', 'a'], 'count': [6, 5]}
    >>> dict(zip(*others.to_pydict().values()))
    {'c': 2, 'd': 3}
    """
    whole = pa.concat_tables([known, rare, new]).group_by("value").aggregate([("count", "sum")])
    whole = whole.select(["value", "count_sum"]).rename_columns(_SCHEMA.names).combine_chunks()
    places = pc.index_in(known["value"], value_set=whole["value"])
    others = pc.invert(pc.is_in(whole["value"], value_set=known["value"]))
    return whole.take(places).cast(_SCHEMA), whole.filter(others).cast(_SCHEMA)


def _values(folder: Path, name: str) -> pa.Table:
    table = pq.read_table(folder / f"unique.{name}.parquet", columns=[name, f"{name}_size"])
    return table.rename_columns(_SCHEMA.names).cast(_SCHEMA)


def _rare_values(folder: Path, name: str) -> pa.Table:
    file = folder / f"rare.{name}.parquet"
    return pq.read_table(file).cast(_SCHEMA) if file.exists() else _SCHEMA.empty_table()


def _observed(folder: Path, name: str, kind: str) -> int:
    meta = pq.read_table(folder / f"meta.{name}.parquet").to_pydict()
    return int(dict(zip(meta["kind"], meta["num_observed"], strict=True))[kind])
