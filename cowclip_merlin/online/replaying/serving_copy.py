"""A copy of a model that serves: its rows and dense weights change only when it is synced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.settings import OnlineSettings
from cowclip_merlin.online.training.trainer import OnlineTrainer, dense_variables, log_schema
from cowclip_merlin.tables.changes import ChangeLog
from cowclip_merlin.tables.serving_table import ServingTable
from cowclip_merlin.training.build import build_model_of

if TYPE_CHECKING:
    from cowclip_merlin.online.events.events import Events
    from cowclip_merlin.online.events.features import LogFeatures

Array = npt.NDArray[Any]


class DenseScorer:
    """The part of a model behind its embedding lookups, with its own dense weights.

    Args:
        settings: of the model.
        features: columns of the log.
    """

    def __init__(self, settings: OnlineSettings, features: LogFeatures) -> None:
        tf, fields = compat.tensorflow(), len(features.categorical)
        run = settings.run
        # The tables of this model stay empty: rows come from outside.
        model = build_model_of(
            run,
            run.hyperparameters("table"),
            log_schema(features),
            tables="growing",
            capacity=fields + 1,
        )
        self.variables, block = dense_variables(model), model.blocks[0]
        rows = [tf.TensorSpec([None, fields, layer.dim]) for layer in model.row_sync.layers]
        numbers = tf.TensorSpec([None, len(features.continuous)])

        @tf.function(input_signature=[rows, numbers], autograph=False)
        def score(rows: list[Any], numbers: Any) -> Any:
            wide = rows[1] if len(rows) > 1 else None
            return tf.sigmoid(tf.cast(block.forward(rows[0], wide, numbers), tf.float32))[:, 0]

        # TensorFlow would warn of new functions in a loop when there are many copies.
        self._score = score.get_concrete_function()
        self._model = model  # keeps the variables alive

    def set_weights(self, weights: Sequence[Array]) -> None:
        """Take over dense weights, in the model's order.

        Raises:
            InputError: they are not those of this model.
        """
        shapes = [tuple(np.shape(x)) for x in weights]
        own = [tuple(variable.shape) for variable in self.variables]
        if shapes != own:
            raise InputError(
                f"dense weights have shapes {shapes}, not {own}; they are of another model"
            )
        for variable, value in zip(self.variables, weights, strict=True):
            variable.assign(np.asarray(value, variable.dtype.as_numpy_dtype))

    def score(self, rows: list[Array], numbers: Array) -> Array:
        """Return click probabilities, float32 [b].

        Args:
            rows: embedding rows of each table, float32 [b, F, d].
            numbers: continuous columns, float32 [b, C].
        """
        tf = compat.tensorflow()
        return self._score([tf.constant(x) for x in rows], tf.constant(numbers)).numpy()


class ServingCopy:
    """What a server would have: the model as of the last sync.

    Args:
        trainer: whose changes the copy takes over at each sync, between `start` and `stop`.
    """

    def __init__(self, trainer: OnlineTrainer) -> None:
        self._trainer = trainer
        self._changes: ChangeLog | None = None
        dims = [table.shape[1] for table in trainer.tables]
        self.table = ServingTable(trainer.table.num_fields, trainer.table.capacity, dims)
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
        return self._scorer.score(self.table.read(events.ids), events.numbers)

    def state(self) -> dict[str, Array]:
        """What `restore` needs beside the trainer's state, by name; most are views."""
        dense = {f"dense{i}": v.numpy() for i, v in enumerate(self._scorer.variables)}
        return self.table.state() | dense

    def restore(self, state: Mapping[str, Array]) -> None:
        """Take over a state; this copy must be new."""
        self.table.restore(state)
        self._scorer.set_weights([state[f"dense{i}"] for i in range(len(self._scorer.variables))])
