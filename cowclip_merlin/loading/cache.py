"""Cache the columns of a prepared folder in files that are mapped into memory.

`DATA/.cache-<split>/` holds `ids.npy`, `continuous.npy` and `label.npy`, with multi-valued columns
also `lengths.npy`, with weights also `weight.npy`. They are checked and written once from the
parquet files. `cache.json` records their source and their checksums. A damaged cache is written
again. `.cache-train-validation/` has the rows of both splits, for a training on all of them.
"""

from __future__ import annotations

import errno
import logging
import shutil
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from cowclip_merlin.errors import InputError
from cowclip_merlin.loading.column_arrays import ColumnArrays
from cowclip_merlin.loading.columns import checked_blocks, joined, read_chunks, read_columns
from cowclip_merlin.system.checksums import checksum
from cowclip_merlin.system.files import (
    leftovers_of_killed,
    read_json,
    work_folder,
    write_json,
)
from cowclip_merlin.types import Array

if TYPE_CHECKING:
    from cowclip_merlin.workflows import PreparedData

FORMAT_VERSION = 2


@dataclass(frozen=True, kw_only=True)
class CacheKey:
    """Source of a cache; if the source changes, the cache is written again.

    Attributes:
        format_version: format version of the cache.
        fingerprint: fingerprint of the prepared data.
        columns: column names in order.
        files: name, bytes and time in ns of every parquet file.
    """

    format_version: int
    fingerprint: str
    columns: list[str]
    files: list[list[str | int]]

    @classmethod
    def of_folder(cls, data: PreparedData, *splits: str) -> CacheKey:
        """Return the key for the current state of one or more splits of this folder."""
        files = [(file.name, file.stat()) for split in splits for file in data.files(split)]
        return cls(
            format_version=FORMAT_VERSION,
            fingerprint=data.fingerprint,
            columns=_columns(data),
            files=[[name, stat.st_size, stat.st_mtime_ns] for name, stat in files],
        )


def _columns(data: PreparedData) -> list[str]:
    weights = [data.log_format.weight] if data.log_format.weight else []
    labels = data.log_format.labels
    return [*data.categorical, *data.continuous, *labels, *weights, *data.log_format.vectors]


def open_columns(data: PreparedData, split: str) -> ColumnArrays:
    """Map the columns of one split read-only from the cache; write the cache if it is missing.

    If the cache cannot be written, read the columns into memory and log a warning.

    Args:
        data: the prepared folder.
        split: "train" or "test".

    Raises:
        InputError: as `read_columns`.
    """
    return _open(
        data,
        (split,),
        lambda: checked_blocks(data, split, read_chunks(data, split)),
        otherwise=lambda: read_columns(data, split),
    )


def open_joined(data: PreparedData, *splits: str) -> ColumnArrays:
    """Map the rows of some splits as one, from a cache of their own, written from those of each.

    Raises:
        InputError: as `read_columns`.
    """
    parts = [open_columns(data, split) for split in splits]
    return _open(data, splits, lambda: parts, otherwise=lambda: joined(data, parts))


def _open(
    data: PreparedData,
    splits: tuple[str, ...],
    blocks: Callable[[], Iterable[ColumnArrays]],
    *,
    otherwise: Callable[[], ColumnArrays],
) -> ColumnArrays:
    """Map the cache of splits; write it from blocks of rows if need be; or else do otherwise."""
    name = "-".join(splits)
    folder, key = data.path / f".cache-{name}", CacheKey.of_folder(data, *splits)
    try:
        if not _is_valid(folder, key):
            rows = sum(data.rows[split] for split in splits)
            _build(folder, key, ColumnArrays.empty(data, 0), rows, blocks())
            if not _has_key(folder, key):  # the old cache was not replaced
                raise OSError(errno.EACCES, "cannot be replaced", str(folder))
        return _map_arrays(folder, ColumnArrays.empty(data, 0))
    except OSError as error:
        logging.getLogger(__name__).warning(
            "%s: no cache of columns (%s); %s rows are read into memory",
            folder,
            error.strerror or error,
            name,
        )
        return otherwise()


def _is_valid(folder: Path, key: CacheKey) -> bool:
    """Whether the cache has this source, and its checksums are right."""
    if not _has_key(folder, key):
        return False
    try:
        whole = read_json(folder / "cache.json").get("checksums") == _checksums(folder)
    except (InputError, OSError):
        return False
    if not whole:
        logging.getLogger(__name__).warning(
            "%s: damaged cache of columns; it is written again", folder
        )
    return whole


def _has_key(folder: Path, key: CacheKey) -> bool:
    try:
        found = read_json(folder / "cache.json")
        return all(found.get(name) == value for name, value in asdict(key).items())
    except (AttributeError, InputError, OSError):
        return False


def _checksums(folder: Path) -> dict[str, str]:
    return {file.stem: checksum(file) for file in sorted(folder.glob("*.npy"))}


def _build(
    folder: Path, key: CacheKey, shape: ColumnArrays, rows: int, blocks: Iterable[ColumnArrays]
) -> None:
    """Write the cache in a work folder, then rename it."""
    for left in leftovers_of_killed(folder):
        shutil.rmtree(left, ignore_errors=True)
    with work_folder(folder) as work:
        made = work / "made"
        made.mkdir()
        _write(made, shape, rows, blocks)
        write_json(made / "cache.json", {**asdict(key), "checksums": _checksums(made)})
        shutil.rmtree(folder, ignore_errors=True)
        # Another run may have written the same cache in the meantime; then use that one.
        with suppress(OSError):
            made.rename(folder)


def _write(folder: Path, shape: ColumnArrays, rows: int, blocks: Iterable[ColumnArrays]) -> None:
    """Append block by block: a full disk raises OSError, which a mapped file cannot do."""
    ids = 0
    with ExitStack() as stack:
        files = {n: stack.enter_context((folder / f"{n}.npy").open("wb")) for n in shape.arrays}
        for name, file in files.items():
            _write_header(file, shape.arrays[name], rows)
        for block in blocks:
            ids += block.ids.size
            for name, file in files.items():
                file.write(getattr(block, name).data)
        if shape.layout is not None:  # the number of ids is known only now
            files["ids"].seek(0)
            _write_header(files["ids"], shape.ids, ids)


def _write_header(file: BinaryIO, like: Array, rows: int) -> None:
    """Write the header of a .npy file; NumPy pads it, so that the mapped values are aligned."""
    description = {
        "descr": np.lib.format.dtype_to_descr(like.dtype),
        "fortran_order": False,
        "shape": (rows, *like.shape[1:]),
    }
    np.lib.format.write_array_header_1_0(file, description)


def _map_arrays(folder: Path, shape: ColumnArrays) -> ColumnArrays:
    return replace(shape, **{name: _map_array(folder / f"{name}.npy") for name in shape.arrays})


def _map_array(file: Path) -> Array:
    try:
        return np.load(file, mmap_mode="r")
    except ValueError:  # no columns of this kind: an empty file cannot be mapped
        return np.load(file)
