"""Checkpoints of tables of which each worker has a part, read by any number of workers.

Worker 0 writes `checkpoints/ckpt-K`, with its part of the tables and everything that all workers
have alike. Before, every other worker has written `checkpoints/workers/R-of-N/ckpt-K`. If as many
workers read them, each reads its own file. Otherwise each makes a file of its rows from all parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import numpy as np

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.types import Array
from cowclip_merlin.workers.partition import shard_rows

COUNT_KEY = "workers/.ATTRIBUTES/VARIABLE_VALUE"
# What a checkpoint does not hold as a slot of a table: steps of rows, and row-wise accumulators.
_OF_ROWS = re.compile(r"optimizer/(table\.+\d+\.+last|embedding_optimizer/accumulator\.+\d+)/")


class _Reader(Protocol):
    """What `tf.train.load_checkpoint` returns."""

    def get_variable_to_shape_map(self) -> dict[str, list[int]]:
        """Map the name of each tensor to its shape."""

    def get_tensor(self, name: str) -> Array:
        """Read a tensor."""


class ShardFiles:
    """The files of one worker.

    Args:
        folder: the folder `checkpoints` of the run.
        rank: number of this worker.
        size: number of workers.
        tables: positions of the sharded tables among the model's variables.
    """

    def __init__(self, folder: Path, rank: int, size: int, tables: Sequence[int]) -> None:
        self._folder, self._rank, self._size = folder, rank, size
        self._prefixes = tuple(f"weights/variables_in_order/{index}/" for index in tables)

    @property
    def own_folder(self) -> Path:
        """Where this worker writes its checkpoints."""
        return self._folder_of(self._rank, self._size)

    def _folder_of(self, rank: int, size: int) -> Path:
        return self._folder / "workers" / f"{rank}-of-{size}" if rank else self._folder

    @contextmanager
    def own_path(self, path: str) -> Iterator[str]:
        """Return the checkpoint that this worker can read, within the block.

        Args:
            path: of worker 0's checkpoint.

        Raises:
            InputError: a part is missing.
        """
        name = Path(path).name
        size = int(_load(path).get_tensor(COUNT_KEY))
        parts = [self._folder_of(rank, size) / name for rank in range(size)]
        for part in parts:
            if not part.with_name(f"{name}.index").exists():
                raise InputError(
                    f"{part}: no such checkpoint, but {size} workers wrote parts of it; copy the "
                    "whole run folder"
                )
        if size == self._size:
            yield str(parts[self._rank])
            return
        with TemporaryDirectory() as folder:
            yield self._merge([_load(part) for part in parts], f"{folder}/{name}")

    def _merge(self, parts: Sequence[_Reader], target: str) -> str:
        """Write a checkpoint with this worker's rows of all parts."""
        tf = compat.tensorflow()
        names = sorted(parts[0].get_variable_to_shape_map())
        values = [self._value(parts, name) for name in names]
        tensors = [tf.constant(value) for value in values]
        tf.raw_ops.SaveV2(
            prefix=target, tensor_names=names, shape_and_slices=[""] * len(names), tensors=tensors
        )
        return target

    def _value(self, parts: Sequence[_Reader], name: str) -> Array:
        if name.startswith(self._prefixes) or _OF_ROWS.match(name):
            return merged_rows((part.get_tensor(name) for part in parts), len(parts), self._place)
        return parts[0].get_tensor(name)

    @property
    def _place(self) -> tuple[int, int]:
        return self._rank, self._size


def _load(path: str | Path) -> _Reader:
    return compat.tensorflow().train.load_checkpoint(str(compat.literal_path(path)))


def merged_rows(parts: Iterator[Array], count: int, place: tuple[int, int]) -> Array:
    """Return the rows of one worker from the parts of another number of workers.

    Args:
        parts: rows `q, q + count, ...` of a table for q = 0, 1, ...
        count: number of parts.
        place: rank r and number n of the workers that read: rows `r, r + n, ...`.

    >>> table = np.arange(7)
    >>> merged_rows((table[q::2] for q in range(2)), 2, (1, 3)).tolist()
    [1, 4]
    """
    rank, size = place
    found: list[tuple[Array, Array]] = []
    total = 0
    for number, part in enumerate(parts):
        rows = number + count * np.arange(len(part))
        own = rows % size == rank
        found.append((rows[own] // size, part[own]))
        total += len(part)
    result = np.empty((shard_rows(total, rank, size), *found[0][1].shape[1:]), found[0][1].dtype)
    for at, values in found:
        result[at] = values
    return result
