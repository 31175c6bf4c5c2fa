"""A prepared folder with fewer rows or fewer ids, as an experiment asks for.

Ids that are left out become out of vocabulary, and the others are numbered anew by falling
frequency, so that tables hold no row that no training row reads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading.columns import refuse_missing, refuse_outside
from cowclip_merlin.system.files import (
    clear_leftovers,
    move_new,
    reading_parquet,
    work_folder,
    write_json,
)
from cowclip_merlin.workflows import PreparedData
from cowclip_merlin.workflows.prepared.counts import FIRST_VALUE, SPECIAL
from cowclip_merlin.workflows.prepared.folder import SPLITS, checksums, write_schema

SAMPLE_SEED = 20220413
OOV = SPECIAL["oov"]
Maps = dict[str, npt.NDArray[np.int32]]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What is changed.

    Attributes:
        fraction: share of the rows that is kept, in both splits; a seeded choice.
        keep_top: ids kept per field, the most frequent ones; None: all.
        min_count: ids kept occur at least so often in the training rows; None: once.

    Raises:
        InputError: a value is out of range.

    >>> str(Variant(fraction=0.5, keep_top=3))
    'rows x 0.5, top 3 ids'
    """

    fraction: float = 1.0
    keep_top: int | None = None
    min_count: int | None = None

    def __post_init__(self) -> None:
        """Refuse what leaves nothing."""
        if not 0 < self.fraction <= 1:
            raise InputError(f"--scale is {self.fraction:g}; use a share above 0, at most 1")
        for name in ("keep_top", "min_count"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; it must be at least 1")

    def __str__(self) -> str:
        """In words; nothing for the data as they are."""
        parts = [f"rows x {self.fraction:g}"] if self.fraction < 1 else []
        parts += [f"top {self.keep_top} ids"] if self.keep_top is not None else []
        parts += [f"ids seen {self.min_count} times"] if self.min_count is not None else []
        return ", ".join(parts)

    def fingerprint(self, data: PreparedData) -> str:
        """Of the data with the change; the data's own if nothing is changed."""
        if not str(self):
            return data.fingerprint
        whole = json.dumps([data.fingerprint, asdict(self), SAMPLE_SEED], sort_keys=True)
        return hashlib.sha256(whole.encode()).hexdigest()


def derive(data: PreparedData, variant: Variant, folder: Path) -> PreparedData:
    """The changed data set: a folder below `folder`, made if it is not there.

    It has splits, schema and counts, but no NVTabular workflow: raw rows cannot be sent
    through it.
    """
    if not str(variant):
        return data
    out = folder / variant.fingerprint(data)[:16]
    if not out.exists():
        folder.mkdir(parents=True, exist_ok=True)
        clear_leftovers(out)
        with work_folder(out) as work:
            with compat.quiet_merlin():
                _write(data, variant, work / "data")
            move_new(work / "data", out)
    return PreparedData.load(out)


def _write(data: PreparedData, variant: Variant, out: Path) -> None:
    counts = _counts(data, variant.fraction)
    maps = {name: renumber(counts[name], variant) for name in data.categorical}
    rows, clicks = {}, 0
    for split in SPLITS:
        (out / split).mkdir(parents=True)
        rows[split], clicked = _write_split(data, split, variant.fraction, maps, out / split)
        clicks += clicked
    for split, number in rows.items():
        if not number:
            raise InputError(
                f"{data.path}: no {split} rows are left of {variant}; keep a larger share"
            )
    sizes = {name: max(FIRST_VALUE, int(new.max()) + 1) for name, new in maps.items()}
    known = replace(data.statistics, cardinalities=sizes)
    description = dict(data.description) | {
        "statistics": asdict(known),
        "recipe": asdict(replace(data.recipe, fit_on="train")),  # as it is counted here
        "rows": rows,
        "fitted_rows": rows["train"],
        "clicks": clicks,
        "fingerprint": variant.fingerprint(data),
        "vocabulary": variant.fingerprint(data),  # ids are numbered anew
        "derived_from": {"fingerprint": data.fingerprint, **asdict(variant)},
    }
    for split in SPLITS:
        write_schema(out / split, data.layout, known)
    _write_counts(out, counts, maps)
    write_json(out / "dataset.json", description | {"checksums": checksums(out)})


def renumber(cnt: npt.NDArray[np.int64], variant: Variant) -> npt.NDArray[np.int32]:
    """The new id of every old one.

    Args:
        cnt: occurrences of each id in the training rows, [ids]; the first three are padding,
            missing and out of vocabulary.
        variant: which ids are kept.

    >>> renumber(np.array([0, 4, 1, 2, 9, 5, 0]), Variant(keep_top=2)).tolist()
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
            cnt += np.bincount(table[name].to_numpy(), minlength=len(cnt))
    return counts


def _tables(data: PreparedData, split: str, fraction: float) -> Iterator[Any]:
    """Arrow tables of the split's chosen rows, in order; the same ones at every call."""
    import pyarrow.parquet as pq

    rng = np.random.default_rng([SAMPLE_SEED, SPLITS.index(split)])
    for file in data.files(split):
        data.verify(file)
        with reading_parquet(file):
            parquet = pq.ParquetFile(file)
            refuse_missing(file, parquet.schema_arrow.names, data)
            for batch in parquet.iter_batches(batch_size=1 << 18):
                for name, size in data.cardinalities.items():
                    refuse_outside(file, name, batch.column(name).to_numpy(), size)
                chosen = _choice(rng, batch.num_rows, fraction)
                yield batch if chosen is None else batch.filter(chosen)


def _choice(rng: np.random.Generator, rows: int, fraction: float) -> Any:
    import pyarrow as pa

    return None if fraction == 1 else pa.array(rng.random(rows) < fraction)


def _write_split(
    data: PreparedData, split: str, fraction: float, maps: Maps, folder: Path
) -> tuple[int, int]:
    """Rows written, and clicks among them."""
    rows = clicks = 0
    with _writer(folder / "part_0.parquet") as write:
        for batch in _tables(data, split, fraction):
            rows += batch.num_rows
            clicks += int(batch.column(data.label).to_numpy().sum())
            write(_renamed(batch, maps))
    return rows, clicks


def _renamed(batch: Any, maps: Maps) -> Any:
    import pyarrow as pa

    columns = [
        pa.array(maps[name][batch.column(name).to_numpy()]) if name in maps else batch.column(name)
        for name in batch.schema.names
    ]
    return pa.table(columns, names=batch.schema.names)


class _writer:
    """A parquet file that gets its schema from the first table; none is written without one."""

    def __init__(self, path: Path) -> None:
        self._path, self._writer = path, None

    def __enter__(self) -> Callable[[Any], None]:
        return self._write

    def _write(self, table: Any) -> None:
        import pyarrow.parquet as pq

        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, table.schema)
        self._writer.write_table(table)

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()


def _write_counts(out: Path, counts: dict[str, npt.NDArray[np.int64]], maps: Maps) -> None:
    """`counts/<field>.parquet` with the new ids; the values' names are not carried over."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    (out / "counts").mkdir()
    for name, new in maps.items():
        cnt = np.bincount(new, weights=counts[name], minlength=FIRST_VALUE).astype(np.int64)
        ids = np.arange(len(cnt), dtype=np.int64)
        table = pa.table({"id": ids, "value": pa.nulls(len(cnt), pa.string()), "count": cnt})
        pq.write_table(table, out / "counts" / f"{name}.parquet")
