"""The Merlin model of the five builders, which brings the rows of its tables up to date.

An optimizer with `update="exact"` postpones the steps of rows that are absent from a batch. A
forward pass must first bring the rows that it reads up to date. A caller that reads or replaces
whole tables must first bring all rows up to date. The model and its layers share one `RowSync` for
this.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cowclip_merlin import compat
from cowclip_merlin.compat.tensorflow_names import safe_names
from cowclip_merlin.errors import InputError
from cowclip_merlin.optimizer import CowClip
from cowclip_merlin.optimizer.exchange import create_synchronized
from cowclip_merlin.optimizer.inner_optimizers import optimizers_in
from cowclip_merlin.types import Array, KerasOptimizer, Tensor, TensorShape, Variable

if TYPE_CHECKING:
    import os

    from merlin.models.tf.core.prediction import Prediction
    from tf_keras.callbacks import History
    from tf_keras.src.engine.compile_utils import MetricsContainer

    from cowclip_merlin.batch import Batch
    from cowclip_merlin.models.embedding import FusedEmbedding, GrowingEmbedding
    from cowclip_merlin.optimizer.unique_rows import BatchRead, ReadForm

tf = compat.tensorflow()
mm = compat.merlin_models()


def find_cowclip(optimizer: KerasOptimizer) -> CowClip | None:
    """Find the CowClip in an optimizer, which may wrap it; return None if there is no CowClip.

    Raises:
        InputError: if there are two and one has `update="exact"`: a model can only attach one.
    """
    found = [each for each in optimizers_in(optimizer) if isinstance(each, CowClip)]
    if len(found) > 1 and any(each.config.update == "exact" for each in found):
        raise InputError(
            'two CowClips in one optimizer, one with update="exact": give one CowClip all tables, '
            'or use update="dense"'
        )
    return found[0] if found else None


def attach(model: CTRModel, optimizer: KerasOptimizer) -> None:
    """Make lookups in training bring the rows that they read up to date.

    `compile` of the five models calls this; a custom training loop must call it once. First, the
    previously attached optimizer brings all rows up to date.

    Args:
        model: one of the five models.
        optimizer: CowClip, or an optimizer that wraps one.
    """
    model.row_sync.attach(find_cowclip(optimizer))


@contextmanager
def attached(model: CTRModel, optimizer: KerasOptimizer) -> Iterator[None]:
    """Attach an optimizer within the block, then restore the model's optimizer."""
    with model.row_sync.using(model.row_sync.cowclip):
        attach(model, optimizer)
        yield


class RowSync:
    """Brings the rows of one model up to date.

    Attributes:
        cowclip: the CowClip that the model trains with; None for any other optimizer.
        layers: the model's embedding layers, in the order of their lookups.
        capacity: `Architecture.capacity`: rows that each growing table reserves, or None.
        grows_with: the CowClip that `growing_table` was called with; None before the call.
        zero_rows: rows from 0 on that no step changes, because they are zeros for absent ids.
        shared_rows: rows from 0 on that are on all workers, if each has a part of a growing table.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.cowclip: CowClip | None = None
        self.layers: list[FusedEmbedding | GrowingEmbedding] = []
        self.capacity = capacity
        self.grows_with: CowClip | None = None
        self.zero_rows = self.shared_rows = 0
        self._registered = False

    def attach(self, cowclip: CowClip | None) -> None:
        """Attach this optimizer, after the previous one has brought all rows up to date."""
        if self.cowclip is not cowclip:
            self.flush()
        self.cowclip, self._registered = cowclip, False
        self._register_tables()

    def before_read(self, layer: FusedEmbedding, index: int, rows: Tensor) -> None:
        """Bring rows up to date in the tables of all layers, which read the same ids.

        Args:
            layer: the layer that reads next.
            index: index of the field, or of the first of several fields.
            rows: numbers of the rows that the layer reads.
        """
        # One call for all layers: `ClickModel.call` reads the first layer before the others.
        if self.cowclip is not None and layer is self.layers[0]:
            self._register_tables()
            tables = [each.tables[index] for each in self.layers]
            if behind := [table for table in tables if table.trainable]:
                self.cowclip.catch_up(behind, rows)

    def read_batch(self, ids: Tensor, x: Tensor, form: ReadForm) -> BatchRead | None:
        """Read a batch from the tables of all layers; see `CowClip.read_batch`."""
        if self.cowclip is None:
            return None
        self._register_tables()
        tables = [layer.tables[0] for layer in self.layers]
        return self.cowclip.read_batch(tables, ids, x, form)

    def shards(self) -> list[Variable]:
        """List the tables of which each worker has a part."""
        return [layer.table for layer in self.layers if layer.is_shard]

    def flush(self) -> None:
        """Bring all rows up to date."""
        if self.cowclip is not None:
            self.cowclip.flush()

    def refuse_growing(self, what: str) -> None:
        """Refuse a method that reads or writes whole tables, if the tables grow.

        Raises:
            InputError: if the tables grow.
        """
        if self.capacity is not None:
            raise InputError(
                f'{what} of a model with tables="growing" would take all {self.capacity:,} '
                "reserved rows: use state() and restore() of its GrowingTable, and the dense "
                "weights"
            )

    def refuse_unfilled(self) -> None:
        """Refuse to read growing tables that nothing fills.

        Raises:
            InputError: if `growing_table` was not called.
        """
        if self.capacity is not None and self.grows_with is None:
            raise InputError(
                'tables="growing": no row has a value yet; call '
                "cc.models.growing_table(model, optimizer) before the first step or prediction"
            )

    def refuse_without_table(self) -> None:
        """Refuse to train growing tables that nothing fills.

        Raises:
            InputError: if `growing_table` was not called, or with another optimizer.
        """
        self.refuse_unfilled()
        if self.cowclip is not self.grows_with:
            raise InputError(
                "the model trains with another optimizer than growing_table was called with, "
                "whose moments would fill all reserved rows; compile it with that one"
            )

    @contextmanager
    def using(self, cowclip: CowClip | None) -> Iterator[None]:
        """Attach another optimizer, or None, within the block, without a flush."""
        before = self.cowclip, self._registered
        self.cowclip, self._registered = cowclip, False
        try:
            yield
        finally:
            self.cowclip, self._registered = before

    def _register_tables(self) -> None:
        """Register the tables once; again before the next read if a layer is not built yet."""
        if self.cowclip is not None and not self._registered:
            self._registered = all(layer.built for layer in self.layers)
            trained = [layer for layer in self.layers if layer.trainable]
            found = [(i, *pair) for x in trained for i, pair in enumerate(x.table_layouts())]
            found = [each for each in found if each[1].trainable]  # a field may be frozen
            # Table i of every layer is read at the same ids.
            lookups = [(id(self), index) for index, _, _ in found]
            layouts = [layout for _, _, layout in found]
            self.cowclip.register_tables([t for _, t, _ in found], layouts, lookups)
            for layer in trained:
                if layer.is_shard and layer.built and layer.size > 1:
                    self.cowclip.tables.mark_shards([layer.table])
                for table, name in layer.row_names():
                    self.cowclip.tables.name_rows([table], name)


_WHOLE_TABLES = ("save_weights", "load_weights", "get_weights", "set_weights")


def flush_before(*names: str) -> Callable[[type], type]:
    """Return a class decorator that makes these methods of the base class flush first."""

    def decorate(kind: type) -> type:
        for name in names:
            setattr(kind, name, _flushing(kind, name))
        return kind

    return decorate


def _flushing(kind: type, name: str) -> Callable[..., Any]:
    def method(self: SyncedLayer | SyncedModel, *args: Any, **kwargs: Any) -> Any:
        if self.row_sync is not None and name in _WHOLE_TABLES:
            self.row_sync.refuse_growing(name)
        elif self.row_sync is not None:
            self.row_sync.refuse_unfilled()
        self.flush()
        return getattr(super(kind, self), name)(*args, **kwargs)

    method.__name__, method.__qualname__ = name, f"{kind.__qualname__}.{name}"
    method.__doc__ = "Work as in Keras, after bringing all rows up to date."
    return method


@flush_before("get_weights", "set_weights")
class SyncedLayer:
    """Mixin of a Keras layer that brings rows up to date before weights are read or replaced.

    Attributes:
        row_sync: the model's `RowSync`; None for a layer outside of the five models.
        is_shard: whether each worker has a part of the layer's table.
    """

    row_sync: RowSync | None = None
    is_shard = False

    def row_names(self) -> list[tuple[Variable, Callable[[int], str]]]:
        """List tables whose rows need names of their own in errors, with the function."""
        return []

    def flush(self) -> None:
        """Bring every row up to date, if the optimizer postpones updates of rows."""
        if self.row_sync is not None:
            self.row_sync.flush()


@flush_before(
    "evaluate",
    "predict",
    "test_on_batch",
    "predict_on_batch",
    "save_weights",
    "load_weights",
    "get_weights",
    "set_weights",
)
class SyncedModel:
    """Mixin of a Keras model that brings rows of its `SyncedLayer`, `blocks[0]`, up to date."""

    @property
    def row_sync(self) -> RowSync:
        """The `RowSync` that the layers share."""
        return self.blocks[0].row_sync

    def flush(self) -> None:
        """Bring every row up to date, if the optimizer postpones updates of rows."""
        self.row_sync.flush()

    @contextmanager
    def flushed_and_detached(self) -> Iterator[None]:
        """Bring all rows up to date, and detach the optimizer within the block."""
        self.flush()
        with self.row_sync.using(None):
            yield


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class CTRModel(SyncedModel, mm.Model):
    """`merlin.models.tf.Model` that brings tables up to date to evaluate, predict and save."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        with tf.variable_creator_scope(create_synchronized):
            super().__init__(*args, **kwargs)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile as in Keras, and attach a CowClip with `update="exact"` to the tables.

        Raises:
            InputError: if `jit_compile` is used with CowClip.
        """
        super().compile(*args, **kwargs)
        if self.jit_compile and find_cowclip(self.optimizer) is not None:
            raise InputError(
                "jit_compile=True: XLA has no operation that counts ids, so it cannot compile "
                "CowClip; remove jit_compile"
            )
        attach(self, self.optimizer)

    def fit(self, *args: Any, train_metrics_steps: int = 1, **kwargs: Any) -> History:
        """Train as in Merlin.

        Raises:
            InputError: if `train_metrics_steps` is used with several replicas.
        """
        if train_metrics_steps != 1 and self.distribute_strategy.num_replicas_in_sync > 1:
            raise InputError(
                f"train_metrics_steps={train_metrics_steps}: several replicas compute metrics at "
                "every step; remove it, or compile without metrics"
            )
        self._create_optimizer_state()
        return super().fit(*args, train_metrics_steps=train_metrics_steps, **kwargs)

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Array | dict[str, Array]:
        """Predict as in Merlin, and warn of a loader whose order is not that of the rows."""
        if isinstance(x, mm.Loader) and x.shuffle:
            warnings.warn(
                "predict: this loader shuffles, so prediction i is not that of row i; give "
                "mm.Loader(data, batch_size=..., shuffle=False)",
                stacklevel=2,
            )
        return super().predict(x, *args, **kwargs)

    def _create_optimizer_state(self) -> None:
        """Create CowClip's variables: TensorFlow traces a step that creates some twice."""
        cowclip = find_cowclip(self.optimizer)
        if cowclip is not None:
            with self.distribute_strategy.scope():
                cowclip.create_state(self.trainable_variables)

    def call(
        self,
        inputs: Batch | dict[str, Tensor],
        targets: dict[str, Tensor] | Tensor | None = None,
        training: bool | None = None,
        testing: bool | None = None,
        output_context: bool | None = None,
    ) -> Tensor | Prediction:
        """Compute outputs as in Merlin, but without AutoGraph, which takes seconds per trace."""
        return self._traced_as_it_stands(inputs, targets, training, testing, output_context)

    @tf.autograph.experimental.do_not_convert
    def _traced_as_it_stands(self, *args: Any) -> Tensor | Prediction:
        return super().call(*args)

    def train_compute_metrics(
        self, outputs: Prediction, compiled_metrics: MetricsContainer
    ) -> dict[str, dict[str, Tensor]]:
        """Compute metrics as in Merlin, but without `tf.cond`, which several replicas lack."""
        if tf.distribute.get_strategy().num_replicas_in_sync > 1:
            return self.compute_metrics(outputs, compiled_metrics)
        return super().train_compute_metrics(outputs, compiled_metrics)

    def save(self, export_path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Save as in Merlin, with tables up to date and a graph without the optimizer's parts.

        It also accepts Keras's `overwrite` and `options`, which `ModelCheckpoint` passes.
        """
        self.row_sync.refuse_growing("save")
        with self.flushed_and_detached():
            if not {"overwrite", "options"} & set(kwargs):
                return super().save(export_path, *args, **kwargs)
            return compat.save_by_keras(self, export_path, *args, **kwargs)

    def export(self, *args: Any, **kwargs: Any) -> None:
        """Export as in Keras (TensorFlow 2.13 or newer), with tables up to date."""
        self.row_sync.refuse_growing("export")
        with self.flushed_and_detached():
            return super().export(*args, **kwargs)


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
