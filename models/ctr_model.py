"""A Merlin model that keeps its tables up to date for an optimizer with `update="exact"`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.models.embedding import FusedEmbedding
from cowclip_merlin.optimizer.keras_contract import cowclips_in

tf = compat.tensorflow()
mm = compat.merlin_models()


def find_cowclip(optimizer: Any) -> Any | None:
    """The CowClip optimizer in this one, which may scale losses or hold several; None if none.

    Raises:
        InputError: there are two, and rows of one may wait: the model asks only one for them.
    """
    found = list(cowclips_in(optimizer))
    if len(found) > 1 and any(each._in_force.update == "exact" for each in found):
        raise InputError(
            'two CowClips in one optimizer, one with update="exact": give one CowClip all tables, '
            'or use update="dense"'
        )
    return found[0] if found else None


def attach(model: Any, optimizer: Any) -> None:
    """Let lookups of training bring the rows they read up to date.

    `compile` of the four models does it; a training loop of your own calls it once. An optimizer
    that was attached before brings all rows up to date first: nobody would do it later.

    Args:
        model: one of the four models.
        optimizer: CowClip, or an optimizer that holds one.
    """
    cowclip, layers = find_cowclip(optimizer), _embeddings(model)
    before = layers[0].before_read
    if before is not None and before.cowclip is not cowclip:
        before.flush()
    hook = None if cowclip is None else _CatchUp(cowclip, tuple(layers))
    for part in (model.blocks[0], *layers):
        part.before_all = None if hook is None else hook.flush
    # One call for all: `ClickModel.call` reads the first before the others, at the same rows.
    for layer in layers:
        layer.before_read = hook if layer is layers[0] else None


@contextmanager
def attached(model: Any, optimizer: Any) -> Iterator[None]:
    """`attach` within the block; after it the model's optimizer is as it was."""
    parts = (model.blocks[0], *_embeddings(model))
    before = [{k: v for k, v in vars(part).items() if k in _HOOKS} for part in parts]
    attach(model, optimizer)
    try:
        yield
    finally:
        for part, hooks in zip(parts, before):
            for name in _HOOKS:
                setattr(part, name, hooks.get(name))


_HOOKS = ("before_read", "before_all")


@dataclass(frozen=True)
class _CatchUp:
    """What a lookup calls before it reads: rows of all tables at the same ids."""

    cowclip: Any
    layers: tuple[FusedEmbedding, ...]

    def __call__(self, index: int, rows: Any) -> None:
        if index == 0:
            self._expect()
        self.cowclip.catch_up([layer.table_at(index) for layer in self.layers], rows)

    def _expect(self) -> None:
        self.cowclip.expect([v for layer in self.layers for v in layer.trainable_variables])

    def flush(self) -> None:
        """Bring all rows up to date, also of an optimizer that was restored and made no step."""
        if tf.executing_eagerly() and int(self.cowclip.iterations.numpy()):
            self._expect()
        self.cowclip.flush()


def _embeddings(model: Any) -> list[FusedEmbedding]:
    parts = vars(model.blocks[0]).values()
    return [part for part in parts if isinstance(part, FusedEmbedding)]


def _synchronized(create: Callable[..., Any], **settings: Any) -> Any:
    """A variable that a `tf.distribute` strategy can hold: it refuses those that say NONE."""
    if settings.get("synchronization") is tf.VariableSynchronization.NONE:
        settings["synchronization"] = tf.VariableSynchronization.AUTO
        settings["aggregation"] = tf.VariableAggregation.ONLY_FIRST_REPLICA
    return create(**settings)


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class CTRModel(mm.Model):
    """`merlin.models.tf.Model` whose evaluation, prediction and saving see current tables."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        with tf.variable_creator_scope(_synchronized):
            super().__init__(*args, **kwargs)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """As in Keras; CowClip with `update="exact"` is attached to the tables.

        Raises:
            InputError: `jit_compile` with CowClip.
        """
        super().compile(*args, **kwargs)
        if self.jit_compile and find_cowclip(self.optimizer) is not None:
            raise InputError(
                "jit_compile=True: XLA has no operation that counts ids, so CowClip cannot be "
                "compiled by it; leave jit_compile out"
            )
        attach(self, self.optimizer)

    def fit(self, *args: Any, train_metrics_steps: int = 1, **kwargs: Any) -> Any:
        """As in Merlin.

        Raises:
            InputError: `train_metrics_steps` with several replicas.
        """
        if train_metrics_steps != 1 and self.distribute_strategy.num_replicas_in_sync > 1:
            raise InputError(
                f"train_metrics_steps={train_metrics_steps}: with several replicas metrics are "
                "computed at every step; leave it out, or compile without metrics"
            )
        return super().fit(*args, train_metrics_steps=train_metrics_steps, **kwargs)

    def train_compute_metrics(self, outputs: Any, compiled_metrics: Any) -> dict[str, Any]:
        """As in Merlin, whose `tf.cond` around metrics no strategy with several replicas takes."""
        if tf.distribute.get_strategy().num_replicas_in_sync > 1:
            return self.compute_metrics(outputs, compiled_metrics)
        return super().train_compute_metrics(outputs, compiled_metrics)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """As in Keras, on tables that are up to date."""
        self.flush()
        return super().evaluate(*args, **kwargs)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """As in Keras, on tables that are up to date."""
        self.flush()
        return super().predict(*args, **kwargs)

    def test_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """As in Keras, on tables that are up to date."""
        self.flush()
        return super().test_on_batch(*args, **kwargs)

    def predict_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """As in Keras, on tables that are up to date."""
        self.flush()
        return super().predict_on_batch(*args, **kwargs)

    def save(self, export_path: Any, *args: Any, **kwargs: Any) -> Any:
        """As in Merlin, tables up to date; what is saved holds nothing of the optimizer's.

        Keras's `overwrite` and `options`, which `ModelCheckpoint` gives, are taken as well.
        """
        self.flush()
        with self._detached():
            if not {"overwrite", "options"} & set(kwargs):
                return super().save(export_path, *args, **kwargs)
            return compat.save_by_keras(self, export_path, *args, **kwargs)

    def export(self, *args: Any, **kwargs: Any) -> Any:
        """As in Keras, from TensorFlow 2.13 on, tables up to date."""
        self.flush()
        with self._detached():
            return super().export(*args, **kwargs)

    def save_weights(self, *args: Any, **kwargs: Any) -> Any:
        """As in Keras, tables up to date."""
        self.flush()
        return super().save_weights(*args, **kwargs)

    def get_weights(self) -> list[Any]:
        """As in Keras, tables up to date."""
        self.flush()
        return super().get_weights()

    def set_weights(self, weights: list[Any]) -> None:
        """As in Keras; steps that rows had missed do not move the new weights."""
        self.flush()
        super().set_weights(weights)

    def load_weights(self, *args: Any, **kwargs: Any) -> Any:
        """As in Keras; steps that rows had missed do not move the new weights."""
        self.flush()
        return super().load_weights(*args, **kwargs)

    def flush(self) -> None:
        """Bring every row up to date, if the optimizer lets rows wait."""
        hook = _embeddings(self)[0].before_read
        if hook is not None:
            hook.flush()

    @contextmanager
    def _detached(self) -> Iterator[None]:
        before = {layer: layer.before_read for layer in _embeddings(self)}
        for layer in before:
            layer.before_read = None
        try:
            yield
        finally:
            for layer, hook in before.items():
                layer.before_read = hook
