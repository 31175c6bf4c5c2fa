"""The values that have ids and how often they came: in memory, and in the files that hold them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from cowclip_merlin.errors import InputError
from cowclip_merlin.system.checksums import write_parquet
from cowclip_merlin.system.files import reading_parquet
from cowclip_merlin.workflows.raw.values.value_text import in_chunks
from cowclip_merlin.workflows.text_numbers import TextNumbers

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from cowclip_merlin.workflows.prepared.folder import PreparedData

SPECIAL = {"pad": 0, "null": 1, "oov": 2}
FIRST_VALUE = 3
OUT_OF_VOCABULARY = "\ufdd0"
"""Text that gets id 2, however often it comes: a character that Unicode keeps for use in programs.

It stands for values that the workflow of an adopted folder has not kept."""

FieldCounts = dict[str, npt.NDArray[np.int64]]
"""Field -> how often each id from 3 on occurs in the fitted rows.

Columns that share a table are one field, with the name of the table."""


class Vocabulary(NamedTuple):
    """The values of a table. Tables of Arrow have the columns value and count.

    Attributes:
        kept: the values with ids from 3 on, in their order; text in chunks of `string`.
        rare: the values without an id, so that `extend` can go on counting them.
        missing: how often a value was missing.
    """

    kept: pa.Table
    rare: pa.Table
    missing: int

    @classmethod
    def of(cls, counts: pa.Table, threshold: int) -> Vocabulary:
        """Give ids by descending frequency, and to equally frequent values in their order."""
        import pyarrow as pa
        import pyarrow.compute as pc

        is_missing = pc.is_null(counts["value"])
        known = counts.filter(pc.invert(is_missing))
        is_rare = pc.less(known["count"], threshold)
        if _is_text(known):  # which may be joined to more than 2 GiB
            known = known.set_column(0, "value", known["value"].cast(pa.large_string()))
            is_rare = pc.or_(is_rare, pc.equal(known["value"], OUT_OF_VOCABULARY))
        places = pc.sort_indices(known, [("count", "descending"), ("value", "ascending")])
        rare = np.asarray(is_rare)[np.asarray(places)]
        found = (_in_chunks(known.take(places.filter(pa.array(x)))) for x in (~rare, rare))
        return cls(*found, _sum(counts.filter(is_missing)))

    @classmethod
    def read(cls, categories: Path, name: str) -> Vocabulary:
        """Read what `write` wrote, whose files are all there."""
        import pyarrow.parquet as pq

        table = pq.read_table(categories / f"unique.{name}.parquet", columns=[name, f"{name}_size"])
        file = categories / f"rare.{name}.parquet"
        kept = table.rename_columns(_schema().names).cast(_schema())
        rare = pq.read_table(file).cast(_schema()) if file.exists() else _schema().empty_table()
        meta = pq.read_table(categories / f"meta.{name}.parquet").to_pydict()
        seen = dict(zip(meta["kind"], map(int, meta["num_observed"]), strict=True))
        return cls(kept, rare, seen["null"])

    def extended(self, counts: pa.Table, threshold: int) -> Vocabulary:
        """Put the new values of a log behind these; values keep their ids, and counts add up.

        A value that was too rare in both gets an id if it is frequent enough in both together.
        New values have the order that `of` gives.
        """
        import pyarrow as pa

        size = self.kept.num_rows
        sums = add_counts([self.kept, self.rare, counts])
        new = Vocabulary.of(sums.slice(size), threshold)
        kept = pa.concat_tables([sums.slice(0, size), new.kept])
        return Vocabulary(kept, new.rare, self.missing + new.missing)

    def write(self, name: str, categories: Path) -> dict[str, str]:
        """Write the files that NVTabular's Categorify reads; return file -> checksum.

        These are `unique.<name>.parquet` and `meta.<name>.parquet`; if there are rare values,
        `rare.<name>.parquet` has them.
        """
        import pandas as pd
        import pyarrow as pa

        meta = {
            "kind": [*SPECIAL, "unique"],
            "offset": [*SPECIAL.values(), FIRST_VALUE],
            "num_indices": [1] * len(SPECIAL) + [self.kept.num_rows],
            "num_observed": [*self._seen, _sum(self.kept)],
        }
        tables = {"meta": pa.Table.from_pandas(pd.DataFrame(meta))}
        if self.kept.num_rows or self.rare.num_rows:
            tables["unique"] = _with_ids(self.kept, name)
        else:
            tables["unique"] = pa.Table.from_pandas(empty_vocabulary(name))
        tables |= {"rare": self.rare} if self.rare.num_rows else {}
        files = {f"{kind}.{name}.parquet": table for kind, table in tables.items()}
        return {file: write_parquet(table, categories / file) for file, table in files.items()}

    @property
    def _seen(self) -> list[int]:
        """How often each special id was seen."""
        return [0, self.missing, _sum(self.rare)]

    def counts(self) -> pa.Table:
        """Return id, value and count: padding, missing and out of vocabulary first, as nulls."""
        import pyarrow as pa

        values, seen = [pa.nulls(len(SPECIAL), pa.string())], np.array(self._seen, np.int64)
        values += self.kept["value"].chunks
        count = np.concatenate([seen, self.kept["count"].to_numpy()])
        return pa.table(
            {
                "id": np.arange(len(count)),
                "value": pa.chunked_array(values, pa.string()),
                "count": count,
            }
        )


def _schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema({"value": pa.string(), "count": pa.int64()})


def _in_chunks(counts: pa.Table) -> pa.Table:
    import pyarrow as pa

    values = counts["value"]
    if not pa.types.is_large_string(values.type):
        return counts
    return counts.set_column(0, "value", in_chunks(values.combine_chunks()))


def add_counts(parts: Sequence[pa.Table]) -> pa.Table:
    """Add up the counts of equal values, which are in the order in which they first come.

    The null is the last one. Arrow's `group_by` ends the process at 2 GiB of text.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not all(map(_is_text, parts)):  # counts that came over a network are not aligned in memory
        sums = pa.concat_tables(parts).combine_chunks().group_by("value")
        sums = sums.aggregate([("count", "sum")]).select(["value", "count_sum"])
        return sums.rename_columns(["value", "count"])
    texts, sums, nulls = TextNumbers(), np.zeros(0, np.int64), []
    for part in parts:
        is_missing = pc.is_null(part["value"])
        nulls += part.filter(is_missing)["count"].to_pylist()
        known = _in_chunks(part.filter(pc.invert(is_missing)))
        numbers = texts.add(known["value"])
        sums = np.append(sums, np.zeros(len(texts) - len(sums), np.int64))
        np.add.at(sums, numbers, known["count"].to_numpy())
    values = texts.values()
    if nulls:
        values = pa.chunked_array([*values.chunks, pa.nulls(1, pa.string())])
        sums = np.append(sums, sum(nulls))
    return pa.table({"value": values, "count": sums})


def _is_text(counts: pa.Table) -> bool:
    import pyarrow as pa

    kind = counts["value"].type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _sum(counts: pa.Table) -> int:
    import pyarrow.compute as pc

    return pc.sum(counts["count"], min_count=0).as_py()


def _with_ids(known: pa.Table, name: str) -> pa.Table:
    """Return values and counts under NVTabular's names, with the ids as index for pandas.

    pandas describes the first row only: it would make a Python string of every value.
    """
    import pandas as pd
    import pyarrow as pa

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
    import pandas as pd

    return pd.DataFrame({name: pd.array([], "string"), f"{name}_size": np.array([], np.int64)})


class ValuesHash:
    """A hash of the value of each id from 3 on, for each table, whatever the chunks."""

    def __init__(self) -> None:
        self._lengths, self._text = hashlib.sha256(), hashlib.sha256()

    def add(self, name: str, values: pa.ChunkedArray) -> None:
        """Add the values of the next table, in the order of their ids."""
        import pyarrow as pa

        self._lengths.update(f"{name} {len(values)} ".encode())
        for part in values.cast(pa.large_binary()).chunks:
            _, offsets, data = part.buffers()
            ends = np.frombuffer(offsets, np.int64)[part.offset :][: len(part) + 1]
            self._lengths.update(np.diff(ends).tobytes())
            self._text.update(memoryview(data or b"")[ends[0] : ends[-1]])

    def hexdigest(self) -> str:
        """Return the hash of all tables so far."""
        return hashlib.sha256(self._lengths.digest() + self._text.digest()).hexdigest()


def read_counts(
    data: PreparedData, field: str, columns: Sequence[str] = ("id", "value", "count")
) -> pa.Table:
    """Read the counts of one field: an Arrow table of id, value and count, ordered by id.

    The ids 0, 1 and 2 (padding, missing and out of vocabulary) come first, without a value.
    The counts of a field that shares a table are those of all its columns. Most of the file, and of
    the memory, is values: name only the columns that are needed.

    Raises:
        InputError: if the field does not exist, or its file is missing or damaged.
    """
    import pyarrow.parquet as pq

    if field not in data.categorical:
        raise InputError(f"{data.path}: no field {field!r}; it has {', '.join(data.categorical)}")
    file = data.path / "counts" / f"{data.log_format.table_of(field)}.parquet"
    data.verify(file)
    with reading_parquet(file):
        return pq.read_table(file, columns=list(columns))


def frequencies(data: PreparedData, table: str) -> npt.NDArray[np.int64]:
    """Return how often each value of a table occurs in the fitted rows, in descending order."""
    if data.counts is not None:  # `prepare` has just written them
        return data.counts[table]
    return read_counts(data, table, ["count"])["count"].to_numpy()[len(SPECIAL) :]


def value_to_id(data: PreparedData, field: str) -> dict[str, int]:
    """Return the id of each value of a field; all other values have id 2."""
    table = read_counts(data, field).slice(len(SPECIAL))
    return dict(zip(table["value"].to_pylist(), table["id"].to_pylist(), strict=True))


def id_to_value(data: PreparedData, field: str) -> list[str | None]:
    """Return the value of each id of a field; None for padding, missing and out of vocabulary."""
    return read_counts(data, field)["value"].to_pylist()
