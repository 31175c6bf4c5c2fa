"""Extend the vocabularies of a prepared folder by the values of another log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cowclip_merlin.workflows.vocabulary import by_frequency, sum_of_counts, write_values

if TYPE_CHECKING:
    from collections.abc import Iterable

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
