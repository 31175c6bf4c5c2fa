"""Shared parts of the five models: tables, linear part, MLP, output and Merlin model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cowclip_merlin import choices, compat
from cowclip_merlin.batch import Batch, Ids
from cowclip_merlin.checks import one_of
from cowclip_merlin.compat.tensorflow_names import safe_names
from cowclip_merlin.errors import InputError
from cowclip_merlin.models import embedding
from cowclip_merlin.models.columns import Columns, combined
from cowclip_merlin.models.ctr_model import CTRModel
from cowclip_merlin.models.interaction import sum_over_fields
from cowclip_merlin.models.precision import computing_in, current_policy
from cowclip_merlin.models.row_sync import RowSync, SyncedLayer
from cowclip_merlin.types import Initializer, JsonObject, Tensor, TensorShape

if TYPE_CHECKING:
    from merlin.schema import Schema

    from cowclip_merlin.models.embedding import FusedEmbedding, GrowingEmbedding

tf = compat.tensorflow()
mm = compat.merlin_models()


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Settings of every model.

    Attributes:
        embedding_dim: length of an embedding row.
        mlp: widths of the hidden layers.
        continuous: "deep": continuous features enter the MLP only, as in the paper's text;
            "all": the linear and cross parts too, as in the authors' code.
        tables: layout of the tables, one of `choices.TABLES`.
        capacity: rows to reserve for each table of `tables="growing"`; see `growing_table`.
        init_std: standard deviation of the initial embeddings.
        seed: random seed of all initial weights; None draws one from NumPy's global generator.
        freeze_embeddings: categorical columns whose embeddings stay as they start; for
            `tables="per_field"`. First-order weights are trained in any case.

    Raises:
        InputError: if a value is unknown or out of range.
    """

    embedding_dim: int = 10
    mlp: tuple[int, ...] = (400, 400, 400)
    continuous: str = "deep"
    tables: str = "fused"
    capacity: int | None = None
    init_std: float = 1e-2
    seed: int | None = None
    freeze_embeddings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the values, and choose a seed if it is None."""
        object.__setattr__(self, "mlp", tuple(self.mlp))
        one_of("continuous", self.continuous, choices.CONTINUOUS)
        one_of("tables", self.tables, choices.TABLES)
        self._check_capacity()
        object.__setattr__(self, "freeze_embeddings", tuple(self.freeze_embeddings))
        if self.freeze_embeddings and self.tables != "per_field":
            raise InputError(
                f"freeze_embeddings needs a table for each column, but tables is {self.tables!r}; "
                'use tables="per_field"'
            )
        if self.embedding_dim < 1 or not self.mlp or min(self.mlp) < 1:
            raise InputError(
                f"embedding_dim {self.embedding_dim}, mlp {self.mlp}: all must be at least 1"
            )
        if self.seed is None:
            object.__setattr__(self, "seed", int(np.random.randint(1 << 30)))

    def _check_capacity(self) -> None:
        if self.tables != "growing" and self.capacity is not None:
            raise InputError(
                'capacity is only for tables="growing", but '
                f"tables is {self.tables!r}; leave it out"
            )
        if self.tables == "growing" and self.capacity is None:
            raise InputError(
                'tables="growing" needs capacity, the number of rows to reserve; give more than '
                "the run will use"
            )
        if self.capacity is not None and not 1 <= self.capacity < 1 << 31:
            raise InputError(f"capacity is {self.capacity}; give 1 or more, below 2^31")


class ClickModel(SyncedLayer, mm.Block):
    """Base of the five models: a Merlin block that maps a batch to one logit per row.

    Attributes:
        jit_compile: whether XLA compiles the layers after the lookups, in training.

    Args:
        columns: columns of the input, as a dictionary or `Columns`.
        architecture: settings, as a dictionary or `Architecture`.
    """

    jit_compile = False

    def __init__(
        self, columns: Columns | JsonObject, architecture: Architecture | JsonObject, **kwargs: Any
    ) -> None:
        # With a mixed-precision policy, only hidden and cross layers use half precision.
        super().__init__(**({"dtype": "float32"} | kwargs))
        self._hidden_policy = current_policy()
        self.columns = columns if isinstance(columns, Columns) else Columns(**columns)
        if not isinstance(architecture, Architecture):
            architecture = Architecture(**architecture)
        self.architecture = architecture
        self.row_sync = RowSync(architecture.capacity)
        self.embedding = self._tables(architecture.embedding_dim, architecture.init_std, "")
        self.hidden = [
            mm.MLPBlock([width], kernel_initializer=self._he(index))
            for index, width in enumerate(architecture.mlp)
        ]
        self.logit = tf.keras.layers.Dense(1, kernel_initializer=self._he(50), dtype="float32")

    def _tables(self, dim: int, std: float, prefix: str) -> FusedEmbedding | GrowingEmbedding:
        kind = getattr(embedding, choices.TABLES[self.architecture.tables])
        growing, seed = self.architecture.tables == "growing", self.architecture.seed
        rows = self.architecture.capacity if growing else self.columns.table_rows
        shared = self.columns.table_of_field if self.columns.tables and not growing else None
        more: dict[str, Any] = {} if prefix else self._frozen()
        more |= {} if shared is None else {"field_of_column": shared}
        layer = kind(rows, dim, std=std, seed=seed, prefix=prefix, **more)
        layer.row_sync = self.row_sync
        self.row_sync.layers.append(layer)
        return layer

    def _frozen(self) -> dict[str, tuple[str, ...]]:
        """Return the tables that the layer of embeddings freezes, as its argument."""
        names = self.architecture.freeze_embeddings
        for name in names:
            if name not in self.columns.fields:
                known = ", ".join(self.columns.fields)
                raise InputError(
                    f"freeze_embeddings: no categorical column {name!r}; there are {known}"
                )
        tables = dict.fromkeys(self.columns.tables.get(name, name) for name in names)
        return {"frozen": tuple(tables)} if names else {}

    def _he(self, index: int) -> Initializer:
        """Return a He-normal initializer; with one seed, equal shapes would get equal values."""
        return tf.keras.initializers.HeNormal(seed=self.architecture.seed + index)

    def add_linear(self) -> None:
        """Create the first-order part: 1-dimensional id weights, and a kernel for mode "all"."""
        self.wide = self._tables(1, 0.0, "wide_")
        self.wide_dense = tf.keras.layers.Dense(
            1, use_bias=False, kernel_initializer="zeros", dtype="float32"
        )

    def linear(self, wide: Tensor, x: Tensor) -> Tensor:
        """Sum the id weights [b, F, 1], and add `x . w` in mode "all"; return [b, 1]."""
        first_order = sum_over_fields(wide)
        return first_order + self.wide_dense(x) if self._uses_all(x) else first_order

    def mlp(self, v: Tensor, x: Tensor) -> Tensor:
        """Apply the hidden layers to all embeddings and continuous features, [b, mlp[-1]]."""
        h = self.flat(v, x)
        for layer in self.hidden:
            h = layer(h)
        return h

    @staticmethod
    def flat(v: Tensor, x: Tensor) -> Tensor:
        """Concatenate embeddings [b, F, d] and features [b, C] to [b, F * d + C]."""
        return tf.concat([tf.reshape(v, [-1, v.shape[1] * v.shape[2]]), x], axis=1)

    def crossed(self, v: Tensor, x: Tensor) -> Tensor:
        """Return the input of the cross layers; only mode "all" has continuous features."""
        return self.flat(v, x if self._uses_all(x) else x[:, :0])

    def _uses_all(self, x: Tensor) -> bool:
        return self.architecture.continuous == "all" and x.shape[1] > 0

    def call(self, inputs: Batch | dict[str, Tensor], training: bool = False) -> Tensor:
        """Compute the logit of each row, [b, 1]."""
        return self._logit(inputs, training)  # Keras reads the signature of `call` itself

    @tf.autograph.experimental.do_not_convert
    def _logit(self, inputs: Batch | dict[str, Tensor], training: bool) -> Tensor:
        ids, x = self.columns.stack(inputs)
        v, wide = self.look_up(ids, training)
        if self.jit_compile and training and not tf.executing_eagerly():
            # A new function for each trace: Keras would save an attribute with the model.
            return tf.function(self.forward, jit_compile=True, autograph=False)(v, wide, x)
        return self.forward(v, wide, x)

    def look_up(self, ids: Ids, training: bool = False) -> tuple[Tensor, Tensor | None]:
        """Look up the embeddings [b, F, d] and, if the model has them, id weights [b, F, 1]."""
        layers = [self.embedding, *([self.wide] if hasattr(self, "wide") else [])]
        if self.architecture.tables == "sharded":
            found = embedding.look_up_shards(layers, ids, training)
        else:
            found = [layer(ids) for layer in layers]
        found = [self.combine(each, ids) for each in found]
        return found[0], found[1] if len(found) > 1 else None

    def combine(self, found: Tensor, ids: Ids) -> Tensor:
        """Combine the ids of each row and column, [b, F, d]; their values need not be known.

        Args:
            found: embedding rows of the ids, [b, F, d], or [m, d] with multi-valued columns.
            ids: the ids.
        """
        return combined(found, ids, self.columns.combiner_of_field)

    def forward(self, v: Tensor, wide: Tensor | None, x: Tensor) -> Tensor:
        """Compute the logit [b, 1] from embeddings [b, F, d], id weights and features [b, C]."""
        known = ", ".join(choices.MODELS)
        raise TypeError(f"{type(self).__name__} is abstract; use one of {known}")

    def compute_output_shape(self, input_shape: TensorShape) -> TensorShape:
        """Return the shape of the logits, [b, 1]."""
        return tf.TensorShape([None, 1])

    def get_config(self) -> JsonObject:
        """Return the arguments as plain values."""
        config = super().get_config()
        return config | {
            "columns": asdict(self.columns),
            "architecture": asdict(self.architecture),
            "hidden_policy": self._hidden_policy,
        }

    @classmethod
    def from_config(cls, config: JsonObject) -> ClickModel:
        """Build the block from `get_config`'s values, with the saved policy of hidden layers."""
        with computing_in(config.get("hidden_policy", current_policy())):
            return cls(**{name: value for name, value in config.items() if name != "hidden_policy"})


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class Sigmoid(tf.keras.layers.Layer):
    """Converts logits to probabilities; Keras's cross-entropy reads the logit from this layer."""

    def call(self, z: Tensor) -> Tensor:
        """[b, 1] -> [b, 1]."""
        return tf.keras.activations.sigmoid(z)

    def compute_output_shape(self, input_shape: TensorShape) -> TensorShape:
        """Return the shape of the input."""
        return input_shape


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class ClickOutput(mm.BinaryOutput):
    """Merlin's output for 0/1 labels, with a layer name that TensorFlow accepts."""

    @classmethod
    def get_task_name(cls, target_name: str) -> str:
        """Return Merlin's name, after replacing characters that TensorFlow does not accept."""
        return mm.BinaryOutput.get_task_name(target_name and safe_names([target_name])[target_name])


def assemble(
    kind: type[ClickModel], schema: Schema, architecture: Architecture, **more: Any
) -> CTRModel:
    """Build a Merlin model around a block, and create its variables."""
    columns = Columns.from_schema(schema, rows=architecture.capacity)
    body = kind(columns, architecture, **more)
    names = [*columns.fields, *columns.continuous]
    output = ClickOutput(columns.target, to_call=Sigmoid(dtype="float32"), dtype="float32")
    model = CTRModel(body, output, schema=schema.select_by_name(names))
    one_row = {name: tf.zeros([1, 1], tf.int64) for name in columns.fields}
    model(one_row | {name: tf.zeros([1, n]) for name, n in columns.widths.items()})
    return model


def logits(model: CTRModel, inputs: Batch | dict[str, Tensor], *, training: bool = False) -> Tensor:
    """Compute the logits of one of the five models, before its sigmoid: [b, 1], float32.

    Args:
        model: one of the five models.
        inputs: a `Batch`, or a batch per column or stacked; see `Columns.stack`.
        training: as in Keras.
    """
    return tf.cast(model.blocks[0](inputs, training=training), tf.float32)
