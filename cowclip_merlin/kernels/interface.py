"""What the implementations of the row kernels have in common: settings, results, the error."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

ROW_CLIPS = ("none", "cowclip", "column")
"""Clips that look at one row at a time; `update_rows` knows these."""


@dataclass(frozen=True, kw_only=True)
class RowSettings:
    """Settings of L2, clip and Adam.

    Attributes:
        l2: the penalty is `l2 * ||w||^2`.
        clip: "none", "cowclip", "column", or for `clip_rows` only "global", "field" and
            "adaptive_field".
        r: threshold relative to the norm of a row.
        zeta: lower bound of the row norm, per coordinate.
        bound: threshold of the constant clips.
        beta_1: decay of Adam's first moment.
        beta_2: decay of its second moment.
        epsilon: added to the square root of the second moment.
    """

    l2: float = 0.0
    clip: str = "cowclip"
    r: float = 1.0
    zeta: float = 1e-5
    bound: float = 25.0
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7

    def floor(self, d: int) -> float:
        """Least norm that a row of length d counts with: `sqrt(d) * zeta`."""
        return math.sqrt(d) * self.zeta


class Groups(NamedTuple):
    """Where each distinct id of a batch occurs.

    Attributes:
        ids: distinct ids, ascending, [u].
        starts: int [u + 1]; id i occurs at `order[starts[i]:starts[i + 1]]`.
        order: positions in the batch, by id and then by position, int [n].
    """

    ids: Any
    starts: Any
    order: Any


class UniqueRows(NamedTuple):
    """Distinct ids of a batch.

    Attributes:
        ids: ascending, [u].
        cnt: occurrences, int [u].
        g: summed gradients, [u, d].
    """

    ids: Any
    cnt: Any
    g: Any


class NonFiniteGradient(ArithmeticError):
    """The summed gradient of a row holds NaN or Inf; nothing was written.

    Attributes:
        index: which of the distinct ids, ascending, is the first such.
    """

    def __init__(self, index: int) -> None:
        super().__init__(f"the gradient of distinct id number {index} is not finite")
        self.index = index
