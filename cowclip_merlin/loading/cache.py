"""Cache the columns of a prepared folder in files that are mapped into memory.

`DATA/.cache-<split>/` holds `ids.npy`, `continuous.npy` and `label.npy`. They are checked and
written once from the parquet files. `cache.json` records their source and their checksums. A
damaged cache is written again.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import numpy as np

from cowclip_merlin.errors import InputError
from cowclip_merlin.loading.columns import ColumnArrays, checked_blocks, read_chunks, read_columns
from cowclip_merlin.system.checksums import checksum
from cowclip_merlin.system.files import read_json, write_json
from cowclip_merlin.system.locks import try_lock

if TYPE_CHECKING:
    from cowclip_merlin.workflows import PreparedData

FORMAT_VERSION = 2
_NAMES = ("ids", "continuous", "label")


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
    files: list[list[Any]]

    @classmethod
    def of_folder(cls, data: PreparedData, split: str) -> CacheKey:
        """Return the key for the current state of a split of this folder."""
        files = [(file.name, file.stat()) for file in data.files(split)]
        return cls(
            format_version=FORMAT_VERSION,
            fingerprint=data.fingerprint,
            columns=[*data.categorical, *data.continuous, data.label],
            files=[[name, stat.st_size, stat.st_mtime_ns] for name, stat in files],
        )


def open_columns(data: PreparedData, split: str) -> ColumnArrays:
    """Map the columns of one split read-only from the cache; write the cache if it is missing.

    If the cache cannot be written, read the columns into memory and log a warning.

    Args:
        data: the prepared folder.
        split: "train" or "test".

    Raises:
        InputError: as `read_columns`.
    """
    folder, key = data.path / f".cache-{split}", CacheKey.of_folder(data, split)
    try:
        if not _is_valid(folder, key):
            _build(data, split, folder, key)
        if not _is_valid(folder, key):  # the old cache was not replaced
            raise OSError(errno.EACCES, "cannot be replaced", str(folder))
        return _map_arrays(folder)
    except OSError as error:
        logging.getLogger(__name__).warning(
            "%s: no cache of columns (%s); %s rows are read into memory",
            folder,
            error.strerror or error,
            split,
        )
        return read_columns(data, split)


def _is_valid(folder: Path, key: CacheKey) -> bool:
    try:
        found = read_json(folder / "cache.json")
        if any(found.get(name) != value for name, value in asdict(key).items()):
            return False
        whole = found.get("checksums") == _checksums(folder)
    except (AttributeError, InputError, OSError):
        return False
    if not whole:
        logging.getLogger(__name__).warning(
            "%s: damaged cache of columns; it is written again", folder
        )
    return whole


def _checksums(folder: Path) -> dict[str, str]:
    return {name: checksum(folder / f"{name}.npy") for name in _NAMES}


def _build(data: PreparedData, split: str, folder: Path, key: CacheKey) -> None:
    """Write the cache under a temporary name, then rename it."""
    _remove_leftovers(folder)
    temporary = folder.with_name(f"{folder.name}.{token_hex(4)}.tmp")
    temporary.mkdir()
    try:
        with try_lock(temporary):  # so that no process removes it as a leftover
            _write(data, split, temporary)
            made = {**asdict(key), "checksums": _checksums(temporary)}
            write_json(temporary / "cache.json", made)
            shutil.rmtree(folder, ignore_errors=True)
            # Another run may have written the same cache in the meantime; then use that one.
            with suppress(OSError):
                os.rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write(data: PreparedData, split: str, folder: Path) -> None:
    """Append block by block: a full disk raises OSError, which a mapped file cannot do."""
    shape = ColumnArrays.empty(data, 0)
    with ExitStack() as stack:
        files = {n: stack.enter_context((folder / f"{n}.npy").open("wb")) for n in _NAMES}
        for name, file in files.items():
            _write_header(file, getattr(shape, name), data.rows[split])
        for block in checked_blocks(data, split, read_chunks(data, split)):
            for name, file in files.items():
                file.write(getattr(block, name).data)


def _write_header(file: Any, like: Any, rows: int) -> None:
    """Write the header of a .npy file; NumPy pads it, so that the mapped values are aligned."""
    description = {
        "descr": np.lib.format.dtype_to_descr(like.dtype),
        "fortran_order": False,
        "shape": (rows, *like.shape[1:]),
    }
    np.lib.format.write_array_header_1_0(file, description)


def _map_arrays(folder: Path) -> ColumnArrays:
    ids, continuous, label = (folder / f"{name}.npy" for name in _NAMES)
    return ColumnArrays(_map_array(ids), _map_array(continuous), _map_array(label))


def _map_array(file: Path) -> Any:
    try:
        return np.load(file, mmap_mode="r")
    except ValueError:  # no columns of this kind: an empty file cannot be mapped
        return np.load(file)


def _remove_leftovers(folder: Path) -> None:
    """Remove temporary folders of killed processes, which no process has locked.

    Process ids cannot identify them, because every container uses id 1.
    """
    for left in folder.parent.glob(f"{folder.name}.*.tmp"):
        with suppress(OSError), try_lock(left) as ours:
            if ours:
                shutil.rmtree(left, ignore_errors=True)
