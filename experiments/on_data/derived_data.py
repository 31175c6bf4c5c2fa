"""Derive a prepared folder with fewer rows or fewer ids.

Removed ids become out of vocabulary. The others are renumbered by descending frequency, so that
every table row from 3 on occurs in the training rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.on_data.plan import SAMPLE_SEED, DataVariant
from cowclip_merlin.loading.columns import check_columns_present, check_ids_in_vocabulary
from cowclip_merlin.system.files import (
    clear_leftovers,
    reading_parquet,
    rename_if_free,
    work_folder,
    write_json,
)
from cowclip_merlin.types import ArrowColumn
from cowclip_merlin.workflows import PreparedData
from cowclip_merlin.workflows.prepared.counts import FIRST_VALUE, SPECIAL
from cowclip_merlin.workflows.prepared.folder import SPLITS, VALIDATION, checksums, write_schema

if TYPE_CHECKING:
    import pyarrow as pa

OOV = SPECIAL["oov"]
_SPLITS = (*SPLITS, VALIDATION)
Maps = dict[str, npt.NDArray[np.int32]]
"""Field -> new id of each old one."""


def derive_data(data: PreparedData, variant: DataVariant, folder: Path) -> PreparedData:
    """Return the derived data set, a folder in `folder`; write it at the first call.

    It has splits, schema and counts, but no NVTabular workflow, so it cannot prepare raw rows.

    Raises:
        InputError: if columns share a table, whose ids would get two new numbers.
    """
    if not str(variant):
        return data
    if shared := data.log_format.share_embedding:
        raise InputError(
            f"{data.path}: column {min(shared)!r} shares a table, which {variant} cannot renumber; "
            "prepare the data without `share_embedding`"
        )
    out = folder / variant.fingerprint(data)[:16]
    if not out.exists():
        folder.mkdir(parents=True, exist_ok=True)
        clear_leftovers(out)
        with work_folder(out) as work:
            with compat.quiet_merlin():
                _write(data, variant, work / "data")
            rename_if_free(work / "data", out)
    with naming_derived_data(out):
        return PreparedData.load(out)


@contextmanager
def naming_derived_data(folder: Path) -> Iterator[None]:
    """Replace the remedy of errors in a derived folder, which the user did not prepare."""
    try:
        yield
    except InputError as error:
        if str(folder) not in str(error):
            raise
        what, _, _ = str(error).rpartition("; ")
        raise InputError(f"{what}; delete {folder}, and run the command again") from error


def _write(data: PreparedData, variant: DataVariant, out: Path) -> None:
    counts = _counts(data, variant.fraction)
    maps = {name: renumbered_ids(counts[name], variant) for name in data.categorical}
    rows, clicks = {}, 0
    splits = [split for split in _SPLITS if split in data.rows]
    for split in splits:
        (out / split).mkdir(parents=True)
        rows[split], clicked = _write_split(data, split, variant.fraction, maps, out / split)
        clicks += clicked
        if not rows[split]:
            raise InputError(
                f"{data.path}: no {split} rows are left of {variant}; keep a larger share"
            )
    cardinalities = {name: max(FIRST_VALUE, int(new.max()) + 1) for name, new in maps.items()}
    statistics = replace(data.statistics, cardinalities=cardinalities)
    write_schema([out / split for split in splits], data.log_format, statistics)
    _write_counts(out, counts, maps)
    fingerprint = variant.fingerprint(data)
    description = dict(data.description) | {
        "recipe": asdict(replace(data.recipe, fit_on="train")),  # the counts are of these rows
        "rows": rows,
        "fitted_rows": rows["train"],
        "clicks": clicks,
        "fingerprint": fingerprint,
        "vocabulary": fingerprint,  # ids have new numbers
        "derived_from": {"fingerprint": data.fingerprint, **asdict(variant)},
        "statistics": asdict(statistics),
    }
    write_json(out / "dataset.json", description | {"checksums": checksums(out)})


def renumbered_ids(cnt: npt.NDArray[np.int64], variant: DataVariant) -> npt.NDArray[np.int32]:
    """Return the new id of every old id.

    Args:
        cnt: occurrences of each id in the training rows, [ids]; the first three are padding,
            missing and out of vocabulary.
        variant: which ids to keep.

    >>> renumbered_ids(np.array([0, 4, 1, 2, 9, 5, 0]), DataVariant(keep_top=2)).tolist()
    [0, 1, 2, 2, 3, 4, 2]
    """
    new = np.full(len(cnt), OOV, np.int32)
    new[:FIRST_VALUE] = np.arange(min(FIRST_VALUE, len(cnt)))
    order = np.argsort(-cnt[FIRST_VALUE:], kind="stable") + FIRST_VALUE
    kept = order[cnt[order] >= (variant.min_count or 1)][: variant.keep_top]
    new[kept] = FIRST_VALUE + np.arange(len(kept), dtype=np.int32)
    return new


def _counts(data: PreparedData, fraction: float) -> dict[str, npt.NDArray[np.int64]]:
    counts = {name: np.zeros(size, np.int64) for name, size in data.cardinalities.items()}
    for table in _tables(data, "train", fraction):
        for name, cnt in counts.items():
            cnt += np.bincount(_ids(table.column(name)), minlength=len(cnt))
    return counts


def _tables(data: PreparedData, split: str, fraction: float) -> Iterator[pa.RecordBatch]:
    """Yield Arrow tables of the split's chosen rows, in order; every call chooses the same."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng([SAMPLE_SEED, _SPLITS.index(split)])
    for file in data.files(split):
        data.verify(file)
        with reading_parquet(file):
            parquet = pq.ParquetFile(file)
            check_columns_present(file, parquet.schema_arrow.names, data)
            for batch in parquet.iter_batches(batch_size=1 << 18):
                for name, size in data.cardinalities.items():
                    check_ids_in_vocabulary(file, name, _ids(batch.column(name)), size)
                if fraction < 1:
                    batch = batch.filter(pa.array(rng.random(batch.num_rows) < fraction))
                yield batch


def _write_split(
    data: PreparedData, split: str, fraction: float, maps: Maps, folder: Path
) -> tuple[int, int]:
    """Write a split; return the numbers of rows and clicks."""
    import pyarrow.parquet as pq

    rows, clicks, writer = 0, 0, None
    with ExitStack() as opened:
        for batch in _tables(data, split, fraction):
            rows += batch.num_rows
            labels = batch.column(data.label).to_numpy(zero_copy_only=False)
            clicks += int(np.nansum(labels))  # a missing one of several is NaN
            table = _renumbered(batch, maps)
            if writer is None:
                file = folder / "part_0.parquet"
                writer = opened.enter_context(pq.ParquetWriter(file, table.schema))
            writer.write_table(table)
    return rows, clicks


def _renumbered(batch: pa.RecordBatch, maps: Maps) -> pa.Table:
    import pyarrow as pa

    columns = [
        _with_new_ids(batch.column(name), maps[name]) if name in maps else batch.column(name)
        for name in batch.schema.names
    ]
    return pa.table(columns, names=batch.schema.names)


def _ids(column: ArrowColumn) -> npt.NDArray[np.int32]:
    """Return the ids of a column of a batch, one after the other: [n], or of lists [m]."""
    import pyarrow as pa

    return (column.flatten() if pa.types.is_list(column.type) else column).to_numpy()


def _with_new_ids(column: ArrowColumn, new: npt.NDArray[np.int32]) -> ArrowColumn:
    import pyarrow as pa

    ids = pa.array(new[_ids(column)])
    if not pa.types.is_list(column.type):
        return ids
    ends = np.cumsum([0, *column.value_lengths().to_numpy()])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), ids)


def _write_counts(out: Path, counts: dict[str, npt.NDArray[np.int64]], maps: Maps) -> None:
    """Write `counts/<field>.parquet` with the new ids, without their values."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    (out / "counts").mkdir()
    for name, new in maps.items():
        cnt = np.bincount(new, weights=counts[name], minlength=FIRST_VALUE).astype(np.int64)
        ids = np.arange(len(cnt), dtype=np.int64)
        table = pa.table({"id": ids, "value": pa.nulls(len(cnt), pa.string()), "count": cnt})
        pq.write_table(table, out / "counts" / f"{name}.parquet")
