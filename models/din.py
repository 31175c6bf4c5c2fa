"""Deep Interest Network (Zhou et al., arXiv 1706.06978): a history weighted by the target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cowclip_merlin.batch import Ids
from cowclip_merlin.checks import check_whole
from cowclip_merlin.errors import InputError
from cowclip_merlin.models.architecture import Architecture
from cowclip_merlin.models.base import ClickModel, assemble, tf
from cowclip_merlin.models.columns import Columns, cells_of, combined
from cowclip_merlin.types import Initializer, JsonObject, Tensor

if TYPE_CHECKING:
    from merlin.schema import Schema

    from cowclip_merlin.models.ctr_model import CTRModel
    from cowclip_merlin.models.features import Features


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class ActivationUnit(tf.keras.layers.Layer):
    """The weight of each item of a history for a target (section 4.3, figure 2).

    `a(e, t) = W2 prelu(W1 [e, t, e - t, e * t] + b1) + b2`. As in the paper, no softmax follows, so
    that the sum of the weights says how strong the interest is.

    The paper also proposes Dice, which normalizes by the statistics of a batch. The weights of a
    row would then depend on the other rows, and so on micro-batches and workers. So this unit has
    PReLU, the paper's equation 2, which Dice generalizes.

    Args:
        mlp: widths of the hidden layers.
        seed: random seed of the initial weights.
    """

    def __init__(self, mlp: Sequence[int], *, seed: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mlp, self.seed = tuple(mlp), seed
        dense = tf.keras.layers.Dense
        self.hidden = [dense(width, kernel_initializer=self._he(i)) for i, width in enumerate(mlp)]
        self.prelu = [tf.keras.layers.PReLU() for _ in mlp]
        self.weight = dense(1, kernel_initializer=self._he(len(self.mlp)), dtype="float32")

    def _he(self, index: int) -> Initializer:
        return tf.keras.initializers.HeNormal(seed=self.seed + index)

    def call(self, pairs: tuple[Tensor, Tensor]) -> Tensor:
        """Compute the weight of each item for its target.

        Args:
            pairs: the items and their targets, two tensors [k, d].

        Returns:
            Weights, [k, 1].
        """
        items, target = pairs
        h = tf.concat([items, target, items - target, items * target], axis=1)
        for hidden, prelu in zip(self.hidden, self.prelu):
            h = prelu(hidden(h))
        return self.weight(h)

    def get_config(self) -> JsonObject:
        """Return the arguments as plain values."""
        return super().get_config() | {"mlp": self.mlp, "seed": self.seed}


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class DIN(ClickModel):
    """`z = MLP([v_1, ..., v_F, x])`, where a history's `v = sum_j a(e_j, t) e_j`.

    A history is a multi-valued column that shares its table with a column of one id per row. The
    first such column is its target t. Other multi-valued columns are combined as in every model.

    Args:
        columns: columns of the input.
        architecture: settings of the model.
        attention_mlp: widths of the hidden layers of the activation units.

    Raises:
        InputError: if no column is a history, or a setting has no effect.
    """

    def __init__(
        self,
        columns: Columns | JsonObject,
        architecture: Architecture | JsonObject,
        *,
        attention_mlp: Sequence[int] = (36,),
        **kwargs: Any,
    ) -> None:
        super().__init__(columns, architecture, **kwargs)
        self.attention_mlp = tuple(attention_mlp)
        check_whole({"attention_mlp": self.attention_mlp})
        if not self.attention_mlp or min(self.attention_mlp) < 1:
            raise InputError(f"attention_mlp {self.attention_mlp}: all must be at least 1")
        self.pairs = histories(self.columns)
        if not self.pairs:
            raise InputError(
                "model din: no column with several values per row shares its table with a column "
                "of one value per row; give them one, as prepare does with --multi history "
                "--share-embedding history=item, or a features file with `table: item`"
            )
        self._refuse_without_effect()
        seeds = [self.architecture.seed + 200 + 10 * i for i in range(len(self.pairs))]
        self.units = [ActivationUnit(self.attention_mlp, seed=seed) for seed in seeds]

    def _refuse_without_effect(self) -> None:
        names = list(self.columns.fields)
        for history, _ in self.pairs:
            combiner = self.columns.combiners[names[history]]
            if combiner != "mean":
                raise InputError(
                    f"model din weights and sums the history {names[history]!r}, so its combiner "
                    f"{combiner!r} has no effect; leave it out for this column"
                )
        if self.architecture.continuous == "all":
            raise InputError(
                "model din has neither linear nor cross parts, so continuous 'all' has no effect; "
                "leave it out"
            )

    def combine(self, found: Tensor, ids: Ids) -> Tensor:
        """Weight the items of each history by its target, and combine; no item gives zeros.

        Args:
            found: embedding rows of the ids, [b, F, d], or [m, d].
            ids: the ids; their values need not be known.
        """
        if ids.lengths is None:  # one id in every column
            ids = Ids(None, tf.ones(tf.shape(found)[:2], tf.int32))
            found = tf.reshape(found, [-1, found.shape[-1]])
            ids.lengths.set_shape([None, len(self.columns.fields)])
        return combined(found * self._weights(found, ids), ids, self._combiners)

    def _weights(self, found: Tensor, ids: Ids) -> Tensor:
        """Compute the weight of each id, [m, 1]: 1 for those of no history."""
        cells = cells_of(ids)
        row, column = cells // ids.num_fields, cells % ids.num_fields
        weights = tf.ones([tf.size(cells), 1])
        for (history, target), unit in zip(self.pairs, self.units):
            places = tf.where(column == history)
            items, row_of_item = tf.gather_nd(found, places), tf.gather_nd(row, places)
            targets = tf.gather_nd(found, tf.where(column == target))  # one in each row
            a = unit((items, tf.gather(targets, row_of_item)))
            weights = tf.tensor_scatter_nd_update(weights, places, a)
        return weights

    @property
    def _combiners(self) -> list[str]:
        """The combiner of each column; that of a history is the sum."""
        summed = {history for history, _ in self.pairs}
        names = enumerate(self.columns.combiner_of_field)
        return ["sum" if column in summed else combiner for column, combiner in names]

    def forward(self, features: Features) -> Tensor:
        """Compute the logit [b, 1]; the MLP reads all embeddings side by side."""
        return self.mlp_logit(features)

    def get_config(self) -> JsonObject:
        """Return the arguments as plain values."""
        return super().get_config() | {"attention_mlp": self.attention_mlp}


def histories(columns: Columns) -> list[tuple[int, int]]:
    """List the numbers of each history and its target among the categorical columns.

    >>> tables = {"user": "user", "seen": "item", "item": "item"}
    >>> fields, combiners = dict.fromkeys(tables, 9), {"seen": "mean"}
    >>> histories(Columns(fields, (), "click", combiners=combiners, tables=tables))
    [(1, 2)]
    """
    names, table = list(columns.fields), columns.table_of_field
    target: dict[int, int] = {}
    for column, name in enumerate(names):
        if name not in columns.combiners:
            target.setdefault(table[column], column)
    lists = [column for column, name in enumerate(names) if name in columns.combiners]
    return [(column, target[table[column]]) for column in lists if table[column] in target]


def din(schema: Schema, *, attention_mlp: Sequence[int] = (36,), **settings: Any) -> CTRModel:
    """Build DIN as a Merlin model.

    Args:
        schema: Merlin schema with a target and categorical columns with integer domains. A list
            column and a column of one id per row must have a domain of one name.
        attention_mlp: widths of the hidden layers of the activation units.
        **settings: settings of `Architecture`.

    Raises:
        InputError: if the schema or a setting is wrong, or no column is a history.
    """
    return assemble(DIN, schema, Architecture(**settings), attention_mlp=tuple(attention_mlp))
