"""What the training loop tells a recorder about its steps.

`cowclip_merlin.diagnostics` has a recorder. Training knows only this protocol, so that diagnostics
can stand above it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from cowclip_merlin.training.run_logs import TensorBoard
    from cowclip_merlin.training.trainer import Trainer
    from cowclip_merlin.workflows import PreparedData


class StepRecorder(Protocol):
    """Looks at batches before the model is trained on them, and changes no weight.

    Attributes:
        every: steps between two looks. The loop then passes exactly those batches; 0: none.
    """

    every: int

    def open(self, step: int, board: TensorBoard) -> None:
        """Start writing at this step; called once, before the first step."""

    def before_step(self, batch: Any, *, step: int, epoch: int, rows: int) -> None:
        """Look at the batch of the next step, if it is due.

        Args:
            batch: what the next call of the train function gets.
            step: steps done.
            epoch: from 1.
            rows: rows trained on in these steps.
        """

    def pause(self) -> None:
        """Training stops until the next step, for an evaluation or a checkpoint."""


class NoRecorder:
    """A `StepRecorder` that records nothing."""

    every = 0

    def open(self, step: int, board: TensorBoard) -> None:
        """Do nothing."""

    def before_step(self, batch: Any, *, step: int, epoch: int, rows: int) -> None:
        """Do nothing."""

    def pause(self) -> None:
        """Do nothing."""


RecorderFactory = Callable[["Trainer", "PreparedData"], StepRecorder]
"""Makes the recorder of a run, from its trainer and its data."""
