"""Predictions of a replay in files that grow, and that a resumed replay cuts back."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cowclip_merlin.errors import InputError

Array = npt.NDArray[Any]

LABEL, TIME = "label", "time"
_TYPES = {LABEL: np.dtype(np.int8), TIME: np.dtype(np.int64)}
_SCORE = np.dtype(np.float32)


class PredictionFiles:
    """One file for each column: labels, times, and the scores of each serving copy.

    Args:
        folder: of the files; made if it is not there.
        scores: names of the columns of scores.
    """

    def __init__(self, folder: Path, scores: Sequence[str]) -> None:
        self._types = _TYPES | dict.fromkeys(scores, _SCORE)
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
