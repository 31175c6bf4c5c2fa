"""A copy of a model that serves: its rows and dense weights change only when it is synced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cowclip_merlin.online.training.dense_scorer import DenseScorer
from cowclip_merlin.online.training.trainer import OnlineTrainer
from cowclip_merlin.tables.serving_table import ChangeLog, ServingTable
from cowclip_merlin.types import Array

if TYPE_CHECKING:
    from cowclip_merlin.online.events.events import Events


class ServingCopy:
    """What a server would have: the model as of the last sync.

    Args:
        trainer: whose changes the copy takes over at each sync, between `start` and `stop`.
    """

    def __init__(self, trainer: OnlineTrainer) -> None:
        self._trainer = trainer
        self._changes: ChangeLog | None = None
        dims = [table.shape[1] for table in trainer.tables]
        self.table = ServingTable(
            trainer.table.num_fields,
            trainer.table.capacity,
            dims,
            field_of_column=trainer.table.field_of_column,
        )
        self._scorer = DenseScorer(trainer.settings, trainer.features)

    def start(self) -> None:
        """Follow the trainer from now on: its table remembers changes for this copy."""
        self._changes = self._trainer.table.track_changes()

    def stop(self) -> None:
        """Follow the trainer no more; the copy stays as it is."""
        self._trainer.table.stop_tracking(self._changes)
        self._changes = None

    def sync(self) -> None:
        """Take over the rows that changed since the last sync, and all dense weights."""
        changes = self._changes.collect()
        values = [memory.w[changes.rows] for memory in self._trainer.table.memory]
        self.table.apply(changes, values)
        self._changes.clear()
        self._scorer.set_weights(self._trainer.dense_weights())

    def predict(self, events: Events) -> Array:
        """Return click probabilities of events, float32 [b]."""
        rows = self.table.read(events.ids)
        return self._scorer.score(rows, events.numbers, events.ids.lengths)

    def state(self) -> dict[str, Array]:
        """What `restore` needs beside the trainer's state, by name; most are views."""
        return self.table.state() | self._scorer.state()

    def restore(self, state: Mapping[str, Array]) -> None:
        """Take over a state; this copy must be new."""
        self.table.restore(state)
        self._scorer.restore(state)
