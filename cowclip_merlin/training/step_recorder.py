"""Protocol of recorders, which the training loop calls before its steps.

`cowclip_merlin.diagnostics` implements a recorder. Training imports only this protocol, so that
diagnostics can import training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from cowclip_merlin.loading.row_order import PackedBatch
    from cowclip_merlin.training.run_logs import Metrics, TensorBoard
    from cowclip_merlin.training.trainer import Trainer
    from cowclip_merlin.workflows import PreparedData


class StepRecorder(Protocol):
    """Records batches before the model trains on them, and changes no weight.

    Attributes:
        every: steps between two records, which no execution crosses; 0: records nothing. The loop
            calls `before_step` before every execution.
    """

    every: int

    def open(self, step: int, board: TensorBoard) -> None:
        """Start recording at this step. The loop calls this once, before the first step."""

    def before_step(self, batch: PackedBatch, *, step: int, epoch: int, rows: int) -> None:
        """Record the batch of the next step, if it is due.

        Args:
            batch: the argument of the next call of the train function.
            step: number of steps done.
            epoch: the epoch, counted from 1.
            rows: number of rows in the steps done.
        """

    def pause(self) -> None:
        """Pause until the next step, while the loop evaluates or writes a checkpoint."""


class NoRecorder:
    """A `StepRecorder` that records nothing.

    Args:
        every: steps between two stops of the loop, as for the recorder of another worker.
    """

    def __init__(self, every: int = 0) -> None:
        self.every = every

    def open(self, step: int, board: TensorBoard) -> None:
        """Do nothing."""

    def before_step(self, batch: PackedBatch, *, step: int, epoch: int, rows: int) -> None:
        """Do nothing."""

    def pause(self) -> None:
        """Do nothing."""


RecorderFactory = Callable[["Trainer", "PreparedData"], StepRecorder]
"""Makes the recorder of a run, from its trainer and its data."""

AfterEpoch = Callable[["Metrics"], None]
"""Gets the record of an epoch; an exception that it raises ends the training."""


def ignore_epoch(row: Metrics) -> None:
    """Do nothing after an epoch."""
