"""The part of a model behind its embedding lookups, for those who serve it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin import compat
from cowclip_merlin.batch import Ids
from cowclip_merlin.errors import InputError
from cowclip_merlin.models.features import Features
from cowclip_merlin.models.more_columns import grown_weights
from cowclip_merlin.online.new_columns import grown_variables, more_of
from cowclip_merlin.online.training.trainer import log_schema
from cowclip_merlin.training.build import build_model_of
from cowclip_merlin.training.starting.warm_start import scoring_weights
from cowclip_merlin.types import Array, Tensor

if TYPE_CHECKING:
    from cowclip_merlin.online.events.features import LogFeatures
    from cowclip_merlin.online.settings import OnlineSettings


DENSE = "dense"
"""What the names of the weights in a state begin with; their numbers follow."""


class DenseScorer:
    """The part of a model behind its embedding lookups, with its own dense weights.

    Args:
        settings: of the model.
        features: columns of the log.
    """

    def __init__(self, settings: OnlineSettings, features: LogFeatures) -> None:
        from cowclip_merlin.models import multi_task

        tf, fields = compat.tensorflow(), len(features.categorical)
        run = settings.run
        # The tables of this model stay empty: rows come from outside.
        model = build_model_of(
            run,
            run.hyperparameters("table"),
            log_schema(features),
            tables="growing",
            capacity=fields + 1,
            **run.multi_task_of(features.targets),
        )
        self.variables, block = scoring_weights(model), model.blocks[0]
        cells = [None] if features.lists else [None, fields]
        rows = [tf.TensorSpec([*cells, layer.dim]) for layer in model.row_sync.layers]
        numbers = tf.TensorSpec([None, features.num_numbers])
        lengths = [tf.TensorSpec([None, fields], tf.int32)] * bool(features.lists)

        @tf.function(input_signature=[rows, numbers, *lengths], autograph=False)
        def score(rows: list[Tensor], numbers: Tensor, *lengths: Tensor) -> Tensor:
            rows = [block.combine(each, Ids(None, *lengths)) for each in rows]
            wide = tf.concat(rows[1:], axis=2) if len(rows) > 1 else None
            z = block.logits_of(Features(rows[0], wide, numbers))
            return multi_task.values_of(tf.cast(z, tf.float32), features.targets)

        # TensorFlow would warn of new functions in a loop when there are many copies.
        self._score = score.get_concrete_function()
        self._model, self._features = model, features  # the model keeps the variables alive

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

    def restore(
        self, state: Mapping[str, Array], prefix: str = DENSE, *, lacking: Collection[str] = ()
    ) -> None:
        """Take over the weights of `state`.

        Args:
            state: arrays by name, more than these, too.
            prefix: of their names there.
            lacking: columns that the model of the state does not have, the last of their kind.

        Raises:
            KeyError: a weight is missing.
            InputError: they are not those of this model.
        """
        names = [f"{prefix}{i}" for i in range(len(self.variables))]
        if lacking:
            more = more_of(self._features, lacking)
            weights = grown_weights(self._model, self.variables, more)
            variables = dict(zip(names, self.variables))
            state = grown_variables(state, variables, dict(zip(names, weights)))
        self.set_weights([state[name] for name in names])

    def state(self) -> dict[str, Array]:
        """Return what `restore` needs, by name."""
        return {f"{DENSE}{i}": v.numpy() for i, v in enumerate(self.variables)}

    def score(self, rows: list[Array], numbers: Array, lengths: Array | None = None) -> Array:
        """Return click probabilities, float32 [b]; with several targets their predictions, [b, T].

        Args:
            rows: embedding rows of each table, float32 [b, F, d]; with multi-valued columns
                [m, d], one for each id.
            numbers: continuous columns and vectors, float32 [b, C].
            lengths: with multi-valued columns, number of ids in each column, int32 [b, F].
        """
        tf = compat.tensorflow()
        more = [] if lengths is None else [tf.constant(lengths)]
        return self._score([tf.constant(x) for x in rows], tf.constant(numbers), *more).numpy()
