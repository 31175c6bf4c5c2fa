"""What the workers of a run share besides gradients: losses, and proof that they agree."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin.types import Variable
from cowclip_merlin.workers import Workers
from cowclip_merlin.workers.agreement import arrays_of_all, check_alike, numbers_of_all

if TYPE_CHECKING:
    from cowclip_merlin.models import CTRModel


_AT_ONCE = 1 << 20  # rows


def gather_loss(workers: Workers | None, loss_sum: Variable) -> float:
    """Return the sum of the workers' losses; from then on, worker 0 has all of it.

    A checkpoint, which worker 0 writes, then has the loss of all.

    Args:
        workers: this process and the others.
        loss_sum: variable with the sum of this worker.
    """
    total = float(sum(numbers_of_all(workers, float(loss_sum.numpy()))))
    if workers is not None:
        loss_sum.assign(total if workers.is_first else 0.0)
    return total


def average_statistics(workers: Workers | None, model: CTRModel) -> None:
    """Give all workers the mean of their moving means and variances, before these are read.

    Each normalizes its part of a batch by this part, as is usual without a synchronized one.
    """
    if workers is None:
        return
    for variable in model.blocks[0].statistics:
        variable.assign(np.mean(arrays_of_all(workers, variable.numpy()), axis=0))


def check_same_state(workers: Workers | None, step: int, model: CTRModel) -> None:
    """Check that all workers have made the same steps, and the same weights of what all have.

    Raises:
        InputError: if they have not.
    """
    if workers is not None:
        sharded = {x.ref() for x in model.row_sync.shards()}
        alike = [x for x in model.trainable_variables if x.ref() not in sharded]
        weights = {x.name: checksum_of(x) for x in alike}
        check_alike(workers, {"step": step, **weights})


def checksum_of(variable: Variable) -> int:
    """Return the CRC-32 of a variable's bytes, read by parts."""
    crc, rows = 0, variable.shape[0] if variable.shape.rank else 1
    for first in range(0, rows, _AT_ONCE):
        part = variable[first : first + _AT_ONCE] if variable.shape.rank else variable
        crc = zlib.crc32(np.ascontiguousarray(part.numpy()).tobytes(), crc)
    return crc


@contextmanager
def logging_traffic(workers: Workers | None, log: logging.Logger, steps: int) -> Iterator[None]:
    """Log the bytes that this worker sends in the block, for each of so many steps."""
    before = workers.traffic.sent if workers else 0
    yield
    if workers is not None and steps:
        sent = (workers.traffic.sent - before) / steps
        log.info("sent %.3f MB a step to %d other workers", sent / 1e6, workers.size - 1)
