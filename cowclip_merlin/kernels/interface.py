"""Define what all row kernels share: settings, results and errors."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from cowclip_merlin import choices
from cowclip_merlin.choices import ClipSettings
from cowclip_merlin.errors import InputError
from cowclip_merlin.types import Array, ArrayOrTensor


@dataclass(frozen=True, kw_only=True)
class RowSettings:
    """Settings of L2, clip, and Adam or Adagrad.

    Attributes:
        l2: the penalty is `l2 * ||w||^2`.
        clip: one of `choices.kernel_clips()`; `clip_rows` also supports "global", "field" and
            "adaptive_field".
        clip_settings: settings of the clip.
        beta_1: decay of Adam's first moment.
        beta_2: decay of Adam's second moment.
        epsilon: added to the square root of the second moment, or of Adagrad's accumulator.
        squares: factor of the squared gradients in the second moment; 1 in the CUDA kernels.
        micro_batches: equal parts of a batch. The second moment takes the sum of their squared
            gradients, instead of the square of their sum; 1 in the CUDA kernels.
    """

    l2: float = 0.0
    clip: str = "cowclip"
    clip_settings: ClipSettings = field(default_factory=ClipSettings)
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    squares: float = 1.0
    micro_batches: int = 1

    def floor(self, d: int) -> float:
        """Return the lower bound of the norm of a row of length d: `sqrt(d) * zeta`."""
        return math.sqrt(d) * self.clip_settings.zeta

    @property
    def kernel_id(self) -> int:
        """Number of the clip in the row kernels.

        Raises:
            InputError: if the row kernels do not have the clip.
        """
        known = choices.CLIPS.get(self.clip)
        if known is None or known.kernel_id is None:
            raise lacks_clip(self.clip)
        return known.kernel_id

    @property
    def clips_absent_rows(self) -> bool:
        """Whether the clip may scale the L2 gradient of a row that is absent from the batch."""
        return choices.CLIPS[self.clip].clips_absent_rows(self.l2, self.clip_settings)

    @property
    def in_row_kernels(self) -> bool:
        """Whether the row kernels have the clip."""
        return self.clip in choices.kernel_clips()


def lacks_clip(clip: str) -> InputError:
    """Return the error for a clip that the kernels do not have."""
    return InputError(
        f"the row kernels do not have the clip {clip!r}; choose one of "
        f"{', '.join(choices.kernel_clips())}"
    )


class Groups(NamedTuple):
    """Where each distinct id of a batch occurs.

    Attributes:
        ids: distinct ids, ascending, [u].
        starts: int [u + 1]; id i occurs at `order[starts[i]:starts[i + 1]]`.
        order: positions in the batch, by id and then by position, int [n].
    """

    ids: Array
    starts: Array
    order: Array


class UniqueRows(NamedTuple):
    """Distinct ids of a batch, in the order that the returning function documents.

    Attributes:
        ids: integer [u].
        cnt: occurrences, int [u].
        g: summed gradients, [u, d].
        squares: sum over the micro-batches of their squared sums, [u, d]; None: g * g.
    """

    ids: ArrayOrTensor
    cnt: ArrayOrTensor
    g: ArrayOrTensor
    squares: ArrayOrTensor | None = None


class NonFiniteGradient(ArithmeticError):
    """The summed gradient of a row contains NaN or Inf; no table was changed.

    Attributes:
        index: index of the first such id among the distinct ids, ascending.
    """

    def __init__(self, index: int) -> None:
        super().__init__(f"the gradient of distinct id number {index} is not finite")
        self.index = index
