"""Stop a training that reaches NaN or infinity, with a clear error."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager

from cowclip_merlin import compat
from cowclip_merlin.errors import Diverged


@contextmanager
def raising_diverged() -> Iterator[None]:
    """Raise the optimizer's error about a non-finite gradient as `Diverged`.

    On a GPU, a later step or the optimizer's `flush` may raise the error.

    Raises:
        Diverged: if a gradient is not finite.
    """
    try:
        yield
    except compat.tensorflow().errors.OpError as error:
        reason = re.search(r"the gradient of .* is not finite", str(error))
        if reason is None:
            raise
        raise _diverged(reason[0]) from error


def check_loss(loss: float, epoch: int) -> None:
    """Check the sum of the losses of an epoch; epochs count from 1.

    Raises:
        Diverged: if the sum is not finite.
    """
    if not math.isfinite(loss):
        raise _diverged(f"the loss is {loss} in epoch {epoch}")


def check_predictions(nan_rows: int, epoch: int) -> None:
    """Check the predictions after an epoch: its losses do not show the effect of its last step.

    Args:
        nan_rows: how many predictions are NaN.
        epoch: number of the epoch, from 1.

    Raises:
        Diverged: if there are any.
    """
    if nan_rows:
        raise _diverged(f"probabilities are NaN after epoch {epoch}")


def _diverged(what: str) -> Diverged:
    return Diverged(f"training diverged: {what}; use smaller learning rates or a smaller batch")
