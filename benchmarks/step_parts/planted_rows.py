"""Make rows like Criteo's whose labels come from a known model, with NumPy or, on a GPU, CuPy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from cowclip_merlin.bench.random_data import CONTINUOUS
from cowclip_merlin.loading import ColumnArrays
from cowclip_merlin.types import Array


@dataclass(frozen=True)
class PlantedRows:
    """Rows and the probabilities that drew their labels.

    Attributes:
        columns: the rows.
        probabilities: of label 1, float32 [rows].
    """

    columns: ColumnArrays
    probabilities: Array


def planted_rows(
    rows: int, fields: Mapping[str, int], *, seed: int, device: str = "cpu"
) -> PlantedRows:
    """Draw rows with power-law ids; every id adds a fixed number of -0.4 to 0.4 to the logit.

    Args:
        rows: number of rows.
        fields: field -> number of ids.
        seed: seed of all random numbers.
        device: where the arrays are: "cpu" or "gpu".

    >>> made = planted_rows(1000, {"a": 50, "b": 9}, seed=0)
    >>> made.columns.ids.shape, bool(made.columns.ids.max() < 50)
    ((1000, 2), True)
    >>> bool(abs(made.columns.label.mean() - made.probabilities.mean()) < 0.05)
    True
    """
    xp = _array_module(device)
    rng = xp.random.default_rng(seed)
    ids = xp.empty((rows, len(fields)), np.int32)
    logit = xp.full(rows, -1.2, np.float32)
    for j, size in enumerate(fields.values()):
        u = rng.random(rows, dtype=np.float32)
        drawn = xp.exp(u * np.float32(np.log(size + 1.0))).astype(np.int64) - 1
        ids[:, j] = xp.minimum(drawn, size - 1)
        logit += _effect(ids[:, j].astype(np.int64), j)
    numbers = rng.random((rows, CONTINUOUS), dtype=np.float32)
    logit += numbers[:, 0] - numbers[:, 1]
    probabilities = 1 / (1 + xp.exp(-logit))
    label = (rng.random(rows, dtype=np.float32) < probabilities).astype(np.float32)
    return PlantedRows(ColumnArrays(ids, numbers, label), probabilities)


def _effect(ids: Array, column: int) -> Array:
    """Hash each id to a number of -0.4 to 0.4, float32."""
    hashed = ((ids + 1) * (2654435761 + 40506 * column) >> 9) % 1021
    return np.float32(0.8) * hashed.astype(np.float32) / np.float32(1021) - np.float32(0.4)


def _array_module(device: str) -> ModuleType:
    if device == "cpu":
        return np
    import cupy

    return cupy
