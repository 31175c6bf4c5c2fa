"""What the implementations of the row kernels have in common: settings, results, the error."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cowclip_merlin import choices
from cowclip_merlin.choices import ClipSettings
from cowclip_merlin.errors import InputError


@dataclass(frozen=True, kw_only=True)
class RowSettings:
    """Settings of L2, clip and Adam.

    Attributes:
        l2: the penalty is `l2 * ||w||^2`.
        clip: one of `choices.kernel_clips()`; `clip_rows` computes "global", "field" and
            "adaptive_field", too.
        clip_settings: of the clip.
        beta_1: decay of Adam's first moment.
        beta_2: decay of its second moment.
        epsilon: added to the square root of the second moment.
    """

    l2: float = 0.0
    clip: str = "cowclip"
    clip_settings: ClipSettings = field(default_factory=ClipSettings)
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7

    def floor(self, d: int) -> float:
        """Least norm that a row of length d counts with: `sqrt(d) * zeta`."""
        return math.sqrt(d) * self.clip_settings.zeta

    @property
    def kernel_id(self) -> int:
        """The number of the clip in the row kernels.

        Raises:
            InputError: the row kernels do not have it.
        """
        known = choices.CLIPS.get(self.clip)
        if known is None or known.kernel_id is None:
            raise lacks_clip(self.clip)
        return known.kernel_id

    @property
    def in_row_kernels(self) -> bool:
        """Whether the row kernels have the clip."""
        return self.clip in choices.kernel_clips()


def lacks_clip(clip: str) -> InputError:
    """The error of a clip that the kernels do not have."""
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

    ids: Any
    starts: Any
    order: Any


class UniqueRows(NamedTuple):
    """Distinct ids of a batch, in the order that the function which returns them says.

    Attributes:
        ids: integer [u].
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
