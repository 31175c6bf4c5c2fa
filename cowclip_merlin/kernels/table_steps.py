"""Steps of Adam for one table in host memory, where rows may make their steps later."""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

import numpy as np

from cowclip_merlin.choices import RowSettings
from cowclip_merlin.errors import InputError
from cowclip_merlin.kernels.interface import NonFiniteGradient
from cowclip_merlin.types import Array

HISTORY = 1 << 16
"""Steps after which all rows are brought up to date."""


class Sums(NamedTuple):
    """The gradient of one table, by distinct ids.

    Attributes:
        ids: distinct ids, ascending, [u].
        g: summed gradients, float32 [u, d].
        starts: int [u + 1]; their differences are how often each id occurs.
    """

    ids: Array
    g: Array
    starts: Array


class Rows(NamedTuple):
    """The memory of one table: weights and Adam's moments, float32 [N, d]."""

    w: Array
    m: Array
    v: Array


class TableSteps:
    """Which steps the rows of a table have missed, and how they make them.

    Args:
        name: of the table, for errors.
        rows: number N of its rows.
        settings: L2, clip and Adam.
        update: "exact", "lazy" or "dense".
        kernels: module of `cowclip_merlin.kernels`.

    Attributes:
        missed: steps since all rows were up to date.
        factors: clip factors of the last step's rows, float32 [u].
    """

    def __init__(
        self, name: str, rows: int, settings: RowSettings, update: str, kernels: ModuleType
    ) -> None:
        self.name, self.missed = name, 0
        self.factors: Array = np.ones(0, np.float32)
        self._size, self._settings, self._update, self._kernels = rows, settings, update, kernels
        self._last: Array | None = None
        self._rates: Array | None = None

    def sum(self, ids: Array, values: Array) -> Sums:
        """Sum the gradients of equal ids, and count them; nothing changes.

        Args:
            ids: of each occurrence, integer [n].
            values: their gradients, float32 or bfloat16 [n, d].

        Raises:
            InputError: an id is outside the table, or a gradient is not finite.
        """
        groups = self._kernels.group_rows(ids)
        for id_ in groups.ids[:1], groups.ids[-1:]:  # the kernels do not check ids
            if len(id_) and not 0 <= id_[0] < self._size:
                raise InputError(f"{self.name}: id {id_[0]} is outside its {self._size} rows")
        try:
            return Sums(groups.ids, self._kernels.sum_rows(values, groups), groups.starts)
        except NonFiniteGradient as error:
            raise InputError(
                f"{self.name}: the gradient of id {int(groups.ids[error.index])} is not finite; "
                "look at the loss, or use a smaller learning rate"
            ) from error

    def step(self, rows: Rows, sums: Sums, alpha: float) -> None:
        """Make a step of Adam.

        Args:
            rows: the memory of the table.
            sums: of the gradient.
            alpha: learning rate with both bias corrections.
        """
        self._replay(rows, sums.ids)  # they may have been read before the last step
        self.factors = self._kernels.step_rows(*rows, *sums, alpha, self._settings)
        if self._update != "lazy":
            self._remember(sums.ids, alpha)
        if self._update == "dense" or self.missed == HISTORY:
            self.flush(rows)

    def catch_up(self, rows: Rows, ids: Array) -> None:
        """Make the steps that the rows of these ids, integer [n], have missed."""
        if len(ids) and ids.min() >= 0 and ids.max() < self._size:  # else the lookup refuses them
            self._replay(rows, ids)

    def flush(self, rows: Rows) -> None:
        """Make all steps that rows have missed."""
        if self.missed:
            self._replay(rows, None)
            self._last[:] = 0
            self.missed = 0

    def _replay(self, rows: Rows, ids: Array | None) -> None:
        if self.missed:
            made = self._rates[: self.missed]
            self._kernels.replay_rows(
                *rows, self._last, made, self.missed, self._settings, rows=ids
            )

    def _remember(self, ids: Array, alpha: float) -> None:
        if self._last is None:
            self._last = np.zeros(self._size, np.int32)
            self._rates = np.zeros(HISTORY, np.float32)
        self._rates[self.missed] = alpha
        self.missed += 1
        self._kernels.mark_rows(self._last, ids, self.missed)
