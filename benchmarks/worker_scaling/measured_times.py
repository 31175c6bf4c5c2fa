"""Read times of steps and kernels from recorded measurements, and interpolate between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cowclip_merlin.errors import InputError
from cowclip_merlin.system.files import read_json

RESULTS = Path(__file__).parents[1] / "results"
KERNELS = ("group", "update", "replay")
MISSED = 10
"""Steps that a row has missed before it is read again; assumed."""

_STEP = {"model": "deepfm", "update": "exact", "clip": "cowclip", "precision": "float32"}


@dataclass(frozen=True)
class Curve:
    """A measured quantity: ascending positions, and the milliseconds there."""

    x: Sequence[float]
    ms: Sequence[float]

    def at(self, x: float) -> float:
        """Return the milliseconds at x.

        Between measurements the curve is straight. Below the first one it stays level, as a call
        has a least time. Above the last one it goes on with the slope of the last two.

        >>> Curve([10, 20], [1.0, 2.0]).at(5), Curve([10, 20], [1.0, 2.0]).at(40)
        (1.0, 4.0)
        """
        if x <= self.x[-1]:
            return float(np.interp(x, self.x, self.ms))
        slope = (self.ms[-1] - self.ms[-2]) / (self.x[-1] - self.x[-2])
        return self.ms[-1] + slope * (x - self.x[-1])


def step_curve(files: Iterable[str], vocabulary: int) -> Curve:
    """Return the milliseconds of an `exact` step of DeepFM in float32, by batch size.

    Args:
        files: of `cowclip bench`; a name without a folder is in `benchmarks/results`.
        vocabulary: ids of all fields together.

    Raises:
        InputError: if the files do not have two batch sizes for this vocabulary.
    """
    found = {
        int(row["batch"]): 1000 * row["batch"] / row["rows_per_second"]
        for file in files
        for row in _step_rows(RESULTS / file)
        if row["vocabulary"] == vocabulary
    }
    if len(found) < 2:
        raise InputError(
            f"{', '.join(files)}: exact steps of deepfm with {vocabulary} ids at {len(found)} "
            "batch sizes; record two or more with cowclip bench --json"
        )
    return Curve(*zip(*sorted(found.items()), strict=True))


def _step_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of `cowclip bench`, or of a record that contains such rows as "bench"."""
    recorded = read_json(path)
    rows = recorded["results"] if "results" in recorded else recorded["bench"]["rows"]
    every = [{"vocabulary": recorded.get("vocabulary"), **row} for row in rows]
    return [
        row
        for row in every
        if all(row.get(name) == value for name, value in _STEP.items())
        and not row.get("jit_compile")
    ]


def kernel_curves(file: str) -> dict[str, Curve]:
    """Return the milliseconds of the row kernels, by the bytes that they must read and write.

    Args:
        file: of `kernels.py`; a name without a folder is in `benchmarks/results`.

    Raises:
        InputError: if a kernel is missing.
    """
    rows = read_json(RESULTS / file)["results"]
    curves = {}
    for kernel in KERNELS:
        points = sorted(
            (row["bytes"], row["ms"])
            for row in rows
            if row["kernel"] == kernel and row.get("gap") in (None, MISSED)
        )
        if len(points) < 2:
            raise InputError(f"{file}: kernel {kernel} at {len(points)} batch sizes; record two")
        curves[kernel] = Curve(*zip(*points, strict=True))
    return curves
