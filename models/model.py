"""A Merlin model that keeps its tables up to date for an optimizer with `update="exact"`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cowclip_merlin import compat
from cowclip_merlin.models.embedding import FusedEmbedding

tf = compat.tensorflow()
mm = compat.merlin_models()


def find_cowclip(optimizer: Any) -> Any | None:
    """The CowClip optimizer in this one, which may scale losses or hold several; None if none."""
    if hasattr(optimizer, "catch_up"):
        return optimizer
    inner = [getattr(optimizer, name, None) for name in ("inner_optimizer", "default_optimizer")]
    inner += [pair.optimizer for pair in getattr(optimizer, "optimizers_and_blocks", [])]
    found = [find_cowclip(each) for each in inner if each is not None]
    return next((each for each in found if each is not None), None)


def attach(model: Any, optimizer: Any) -> None:
    """Let lookups of training bring the rows they read up to date.

    `compile` of the four models does it; a training loop of your own calls it once.

    Args:
        model: one of the four models.
        optimizer: CowClip, or an optimizer that holds one.
    """
    cowclip, layers = find_cowclip(optimizer), _embeddings(model)

    def before_read(place: int, rows: Any) -> None:
        cowclip.catch_up([layer.table_at(place) for layer in layers], rows)

    for layer in layers:
        layer.before_read = None
    if cowclip is not None:
        # One call for all: `ClickModel.call` reads the first before the others, at the same rows.
        layers[0].before_read = before_read


def _embeddings(model: Any) -> list[FusedEmbedding]:
    parts = vars(model.blocks[0]).values()
    return [part for part in parts if isinstance(part, FusedEmbedding)]


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class CTRModel(mm.Model):
    """`merlin.models.tf.Model` whose evaluation, prediction and saving see current tables."""

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """As in Keras; CowClip with `update="exact"` is attached to the tables."""
        super().compile(*args, **kwargs)
        attach(self, self.optimizer)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """As in Keras, on tables that are up to date."""
        self.flush()
        return super().evaluate(*args, **kwargs)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """As in Keras, on tables that are up to date."""
        self.flush()
        return super().predict(*args, **kwargs)

    def save(self, *args: Any, **kwargs: Any) -> Any:
        """As in Merlin, tables up to date; what is saved holds nothing of the optimizer's."""
        self.flush()
        with self._detached():
            return super().save(*args, **kwargs)

    def save_weights(self, *args: Any, **kwargs: Any) -> Any:
        """As in Keras, tables up to date."""
        self.flush()
        return super().save_weights(*args, **kwargs)

    def get_weights(self) -> list[Any]:
        """As in Keras, tables up to date."""
        self.flush()
        return super().get_weights()

    def flush(self) -> None:
        """Bring every row up to date, if the optimizer lets rows wait."""
        cowclip = find_cowclip(getattr(self, "optimizer", None))
        if cowclip is not None:
            cowclip.flush()

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
