"""Shared parts of the five models: what they read, linear part, output and Merlin model."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from cowclip_merlin import choices, compat
from cowclip_merlin.batch import Batch, Ids, Requests
from cowclip_merlin.models import embedding
from cowclip_merlin.models.architecture import Architecture
from cowclip_merlin.models.columns import Columns, combined
from cowclip_merlin.models.ctr_model import ClickOutput, CTRModel, RowSync, Sigmoid, SyncedLayer
from cowclip_merlin.models.features import Features, ReadFeatures
from cowclip_merlin.models.hidden.layers import computing_in, current_policy
from cowclip_merlin.models.multi_task import HiddenLayers, of_both, outputs_of
from cowclip_merlin.optimizer.unique_rows import BatchRead, ReadForm
from cowclip_merlin.targets import means_and_spreads
from cowclip_merlin.types import JsonObject, Tensor, TensorShape, Variable

if TYPE_CHECKING:
    from merlin.schema import Schema

    from cowclip_merlin.models.embedding import FusedEmbedding, GrowingEmbedding

tf = compat.tensorflow()
mm = compat.merlin_models()

ALIGNMENT = 8
"""Columns of the hidden layers' input are a multiple of this; fast products in bfloat16 need it."""


class ClickModel(HiddenLayers, SyncedLayer, mm.Block):
    """Base of the five models: a Merlin block that maps a batch to a logit per row and target.

    Attributes:
        jit_compile: whether XLA compiles the layers after the lookups, in training. Steps of
            `cc.training` also compile the loss and the backward pass, all as one call.
        second_order: whether the layers read FM's second-order term.

    Args:
        columns: columns of the input, as a dictionary or `Columns`.
        architecture: settings, as a dictionary or `Architecture`.
    """

    jit_compile = False
    second_order = False

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
        self.add_hidden()

    def _tables(self, dim: int, std: float, prefix: str) -> FusedEmbedding | GrowingEmbedding:
        layer = embedding.embedding_layer(
            self.columns, self.architecture, dim, std=std, prefix=prefix
        )
        layer.row_sync = self.row_sync
        self.row_sync.layers.append(layer)
        return layer

    def add_linear(self) -> None:
        """Create the first-order part: 1-dimensional id weights, and a kernel for mode "all".

        Each target has a table of its own: clips leave 1-dimensional tables out.
        """
        targets = len(self.columns.targets)
        if targets == 1:
            self.wide = self._tables(1, 0.0, "wide_")
        else:
            self.wide = [self._tables(1, 0.0, f"wide_{each}_") for each in range(targets)]
        self.wide_dense = tf.keras.layers.Dense(
            targets, use_bias=False, kernel_initializer="zeros", dtype="float32"
        )

    def linear(self, features: Features) -> Tensor:
        """Return the sums of the id weights, in mode "all" plus `x . w`, [b, T]."""
        if self.architecture.continuous == "all" and features.x.shape[1] > 0:
            return features.first_order + self.wide_dense(features.x)
        return features.first_order

    def call(self, inputs: Batch | dict[str, Tensor], training: bool = False) -> Tensor:
        """Compute the logits of each row, [b, T]."""
        return self._logit(inputs, training)  # Keras reads the signature of `call` itself

    @tf.autograph.experimental.do_not_convert
    def _logit(self, inputs: Batch | dict[str, Tensor], training: bool) -> Tensor:
        features, compute = self.read(inputs, training), self.logits_of
        if self.jit_compile and training and not tf.executing_eagerly():
            # A new function for each trace: Keras would save an attribute with the model.
            compute = tf.function(compute, jit_compile=True, autograph=False)
        return compute(features, training)

    def read(self, inputs: Batch | dict[str, Tensor], training: bool = False) -> Features:
        """Read what the layers need of a batch; before, bring its rows up to date.

        Args:
            inputs: of the model; see `Columns.stack`.
            training: as in Keras.
        """
        ids, x = self.columns.stack(inputs)
        if isinstance(inputs, Batch):
            return Features(*self.look_up(ids, training, inputs.requests), x)
        v, wide = self.look_up(ids, training)
        if compat.in_xla() and ids.lengths is None:  # which has no errors, but NaN
            v = tf.where(self.columns.outside(ids)[:, :, tf.newaxis], np.float32("nan"), v)
        return Features(v, wide, x)

    def read_at_once(self, inputs: Batch) -> tuple[ReadFeatures, BatchRead] | None:
        """Read the same by one operation, for training; None if tables or backend have none.

        Args:
            inputs: a batch of stacked columns.

        Returns:
            What the layers need; and the read, which makes gradients of the tables from theirs.
        """
        layers, kind = self.row_sync.layers, embedding.FusedEmbedding
        fused = all(type(x) is kind and x.trainable and len(x.parts) == 1 for x in layers)
        usual = len(layers) <= 2 and type(self).combine is ClickModel.combine
        usual = usual and not hasattr(self, "towers")  # their gates have no padded columns
        if not fused or not usual or len(self.columns.targets) > 1 or inputs.requests is not None:
            return None
        ids, x = self.columns.stack(inputs, keep_type=True)
        if ids.lengths is not None:
            return None
        embedded = ids.num_fields * self.architecture.embedding_dim
        half = tf.keras.mixed_precision.Policy(self._hidden_policy).compute_dtype == "bfloat16"
        form = ReadForm(
            self.embedding.offset_of_column,
            width=-(-(embedded + x.shape[1]) // ALIGNMENT) * ALIGNMENT,
            dtype=tf.bfloat16 if half else tf.float32,
            pairs=self.second_order,
        )
        read = self.row_sync.read_batch(ids.values, x, form)
        return None if read is None else (ReadFeatures(*read.outputs, x, embedded), read)

    def logits_of(self, features: Features, training: bool = False) -> Tensor:
        """Compute the logits of the targets, [b, T]; of one that is a number, the number.

        Args:
            features: what the layers need of the batch.
            training: whether it is for a step of training, where the hidden layers may be one
                operation. What is saved and served has operations of TensorFlow only.
        """
        self._fused = training and not self.jit_compile and self.row_sync.cowclip is not None
        self._training = training
        try:
            z = self.forward(features)
        finally:
            self._fused = self._training = False
        if self.architecture.multi_task == "esmm":
            return of_both(z)
        if not self.columns.scales:
            return z
        means, spreads = means_and_spreads(self.columns.targets, self.columns.scales)
        return tf.constant(means) + tf.cast(z, tf.float32) * tf.constant(spreads)

    def look_up(
        self, ids: Ids, training: bool = False, requests: Requests | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Look up the embeddings [b, F, d] and, if the model has them, id weights [b, F, T]."""
        wide = getattr(self, "wide", [])
        layers = [self.embedding, *([wide] if isinstance(wide, tf.keras.layers.Layer) else wide)]
        found = embedding.look_up(layers, ids, training, requests)
        found = [self.combine(each, ids) for each in found]
        if len(found) > 2:
            return found[0], tf.concat(found[1:], axis=2)
        return found[0], found[1] if len(found) > 1 else None

    def combine(self, found: Tensor, ids: Ids) -> Tensor:
        """Combine the ids of each row and column, [b, F, d]; their values need not be known.

        Args:
            found: embedding rows of the ids, [b, F, d], or [m, d] with multi-valued columns.
            ids: the ids.
        """
        if ids.lengths is None:
            return found
        return combined(found, ids, self.columns.combiner_of_field)

    def forward(self, features: Features) -> Tensor:
        """Compute the logits [b, T], with ESMM those of its two networks."""
        known = ", ".join(choices.MODELS)
        raise TypeError(f"{type(self).__name__} is abstract; use one of {known}")

    @property
    def statistics(self) -> list[Variable]:
        """Moving means and variances of the hidden layers, which only training changes."""
        return [v for v in self.non_trainable_variables if "moving_" in v.name]

    def compute_output_shape(self, input_shape: TensorShape) -> TensorShape:
        """Return the shape of the logits, [b, T]."""
        return tf.TensorShape([None, len(self.columns.targets)])

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


def assemble(
    kind: type[ClickModel], schema: Schema, architecture: Architecture, **more: Any
) -> CTRModel:
    """Build a Merlin model around a block, and create its variables."""
    several = architecture.multi_task is not None
    columns = Columns.from_schema(schema, rows=architecture.capacity, several=several)
    body = kind(columns, architecture, **more)
    names = [*columns.fields, *columns.continuous]
    if several:
        output = outputs_of(columns.targets, columns.scales)
    else:
        output = ClickOutput(columns.target, to_call=Sigmoid(dtype="float32"), dtype="float32")
    model = CTRModel(body, output, schema=schema.select_by_name(names))
    one_row = {name: tf.zeros([1, 1], tf.int64) for name in columns.fields}
    model(one_row | {name: tf.zeros([1, n]) for name, n in columns.widths.items()})
    return model


def logits(model: CTRModel, inputs: Batch | dict[str, Tensor], *, training: bool = False) -> Tensor:
    """Compute the logits of one of the five models, before its sigmoid: [b, 1], float32.

    With several targets [b, T]; that of a regression is its prediction.

    Args:
        model: one of the five models.
        inputs: a `Batch`, or a batch per column or stacked; see `Columns.stack`.
        training: as in Keras.
    """
    return tf.cast(model.blocks[0](inputs, training=training), tf.float32)
