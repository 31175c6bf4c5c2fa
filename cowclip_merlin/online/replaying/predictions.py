"""Predictions of a replay in files that grow, and that a resumed replay cuts back."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from cowclip_merlin.errors import InputError
from cowclip_merlin.types import Array

LABEL, TIME, WEIGHT = "label", "time", "weight"
_TYPES = {LABEL: np.dtype(np.int8), TIME: np.dtype(np.int64)}
_WEIGHT = {WEIGHT: np.dtype(np.float32)}
_SCORE = np.dtype(np.float32)


class PredictionFiles:
    """One file for each column: labels, times, weights, and the scores of each serving copy.

    Args:
        folder: of the files; made if it is not there.
        scores: names of the columns of scores.
        weighted: whether events have weights.
    """

    def __init__(self, folder: Path, scores: Sequence[str], *, weighted: bool = False) -> None:
        self._types = _TYPES | (_WEIGHT if weighted else {}) | dict.fromkeys(scores, _SCORE)
        self._paths = {name: folder / f"{name}.bin" for name in self._types}
        folder.mkdir(parents=True, exist_ok=True)
        for path in self._paths.values():
            path.touch()
        self.rows = 0

    def cut(self, rows: int) -> None:
        """Forget all but the first rows.

        Raises:
            InputError: a file has fewer rows.
        """
        for name, path in self._paths.items():
            size = rows * self._types[name].itemsize
            if path.stat().st_size < size:
                raise InputError(f"{path}: damaged (it ends too early); replay without `resume`")
            os.truncate(path, size)
        self.rows = rows

    def append(self, columns: Mapping[str, Array]) -> None:
        """Append rows, the same number to each column."""
        for name, path in self._paths.items():
            with path.open("ab") as stream:
                stream.write(np.ascontiguousarray(columns[name], self._types[name]).data)
        self.rows += len(columns[LABEL])

    def flush(self) -> None:
        """Wait until all rows are on the disk."""
        for path in self._paths.values():
            with path.open("rb") as stream:
                os.fsync(stream.fileno())

    def read(self, names: Sequence[str] | None = None, *, first: int = 0) -> dict[str, Array]:
        """Return columns from a row on, [n] each.

        Args:
            names: of the columns; None for all.
            first: number of the first row.
        """
        return {
            name: np.fromfile(
                self._paths[name], self._types[name], offset=first * self._types[name].itemsize
            )
            for name in names or self._paths
        }


def with_weight(columns: Mapping[str, Array]) -> dict[str, Array]:
    """Return the rows of a weight above 0; all of them if the events have no weights.

    >>> with_weight({WEIGHT: np.array([0, 2]), LABEL: np.array([1, 0])})[LABEL]
    array([0])
    """
    if WEIGHT not in columns:
        return dict(columns)
    return {name: column[columns[WEIGHT] > 0] for name, column in columns.items()}
