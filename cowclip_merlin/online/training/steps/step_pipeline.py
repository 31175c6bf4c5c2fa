"""Make training steps in a thread, and give the ids of the next batch their rows meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from cowclip_merlin.batch import Ids
from cowclip_merlin.online.events.events import Events
from cowclip_merlin.online.training.trainer import OnlineTrainer
from cowclip_merlin.types import Array


class StepPipeline:
    """Trains batches in their order. Results do not depend on the timing of the thread.

    The steps are those of `admit`, `hold`, step and `expire` for each batch, one after the other.

    Args:
        trainer: its model, optimizer and table.
        scored: is called with labels int8 [b], probabilities float32 [b] and weights float32 [b] or
            None of each batch, scored before its step, in the thread.
    """

    def __init__(
        self, trainer: OnlineTrainer, scored: Callable[[Array, Array, Array | None], None]
    ) -> None:
        self._trainer, self._scored = trainer, scored
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="step")
        self._running: Future[None] | None = None

    def submit(self, events: Events, batch_factor: int = 1) -> None:
        """Begin the step of a batch, when that of the batch before has ended.

        Raises:
            InputError: the table is full, or TensorFlow has moved its memory.
            Diverged: a gradient of the batch before was not finite.
        """
        table = self._trainer.table
        known, rows = self._trainer.admit_beside_step(events)
        self.wait()
        table.check_memory()
        self._trainer.hold(rows)
        self._running = self._threads.submit(self._step, known, rows, events, batch_factor)
        table.expire()

    def wait(self) -> None:
        """Wait until the running step has ended, if there is one."""
        if self._running is not None:
            running, self._running = self._running, None
            running.result()

    def close(self) -> None:
        """Wait for the running step, and end the thread."""
        self._threads.shutdown(wait=True)

    def _step(self, known: Ids, rows: Ids, events: Events, batch_factor: int) -> None:
        scores = self._trainer.score(known, events.numbers)
        if events.offsets is not None:
            scores = of_sampled(scores, events.offsets)
        self._scored(events.labels, scores, events.weights)
        self._trainer.step(rows, events, batch_factor=batch_factor)


def of_sampled(probabilities: Array, offsets: Array) -> Array:
    """Return the click probabilities of events whose negatives were sampled, float32 [n].

    Args:
        probabilities: of all events.
        offsets: log of the rate with which negatives were kept.

    >>> of_sampled(np.array([0.1]), np.log([0.1])).round(3)
    array([0.526])
    """
    return probabilities / (probabilities + (1 - probabilities) * np.exp(offsets))
