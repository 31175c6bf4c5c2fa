"""Keeps the tables of a model current for an optimizer with `update="exact"`.

Such an optimizer lets rows wait: a row that is absent from batches has missed their steps. Before
a forward pass reads rows, they must be brought up to date; before somebody reads or replaces whole
tables, all rows must be. The model and its layers share one `RowSync`, and call it at these points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.optimizer import CowClip
from cowclip_merlin.optimizer.inner_optimizers import optimizers_in

if TYPE_CHECKING:
    from cowclip_merlin.models.embedding import FusedEmbedding

tf = compat.tensorflow()


def find_cowclip(optimizer: Any) -> CowClip | None:
    """The CowClip optimizer in this one, which may scale losses or hold several; None if none.

    Raises:
        InputError: it holds two, and rows of one may wait: the model asks only one for them.
    """
    found = [each for each in optimizers_in(optimizer) if isinstance(each, CowClip)]
    if len(found) > 1 and any(each.config.update == "exact" for each in found):
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
    model.row_sync.attach(find_cowclip(optimizer))


@contextmanager
def attached(model: Any, optimizer: Any) -> Iterator[None]:
    """`attach` within the block; after it the model's optimizer is as it was."""
    with model.row_sync.using(model.row_sync.cowclip):
        attach(model, optimizer)
        yield


class RowSync:
    """What brings the rows of one model up to date.

    Attributes:
        cowclip: the optimizer that the model trains with; None for any other kind.
        layers: the model's embedding layers, in the order in which they read.
    """

    def __init__(self) -> None:
        self.cowclip: CowClip | None = None
        self.layers: list[FusedEmbedding] = []

    def attach(self, cowclip: CowClip | None) -> None:
        """Train with this optimizer from here on; the one before brings all rows up to date."""
        if self.cowclip is not cowclip:
            self.flush()
        self.cowclip = cowclip
        self._register_tables()

    def before_read(self, layer: FusedEmbedding, index: int, rows: Any) -> None:
        """Bring rows up to date in the tables of all layers, which read the same ids.

        Args:
            layer: the one that reads next.
            index: of the field, or of the first of several.
            rows: that it reads.
        """
        # One call for all: `ClickModel.call` reads the first layer before the others.
        if self.cowclip is not None and layer is self.layers[0]:
            if index == 0:
                self._register_tables()  # layers may have been built since `attach`
            self.cowclip.catch_up([each.table_at(index) for each in self.layers], rows)

    def flush(self) -> None:
        """Bring all rows up to date."""
        if self.cowclip is not None:
            self.cowclip.flush()

    @contextmanager
    def using(self, cowclip: CowClip | None) -> Iterator[None]:
        """Within the block, lookups ask another optimizer, or none; nothing is flushed."""
        before, self.cowclip = self.cowclip, cowclip
        try:
            yield
        finally:
            self.cowclip = before

    def _register_tables(self) -> None:
        if self.cowclip is not None:
            trained = [layer for layer in self.layers if layer.trainable]
            pairs = [pair for layer in trained for pair in layer.table_layouts()]
            self.cowclip.register_tables([t for t, _ in pairs], [layout for _, layout in pairs])


def flush_before(*names: str) -> Callable[[type], type]:
    """A class decorator: methods of these names as in the base class, after `self.flush()`."""

    def decorate(kind: type) -> type:
        for name in names:
            setattr(kind, name, _flushing(kind, name))
        return kind

    return decorate


def _flushing(kind: type, name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.flush()
        return getattr(super(kind, self), name)(*args, **kwargs)

    method.__name__, method.__qualname__ = name, f"{kind.__qualname__}.{name}"
    method.__doc__ = "As in Keras, on tables that are up to date."
    return method


@flush_before("get_weights", "set_weights")
class SyncedLayer:
    """Mixin of a Keras layer: its weights are up to date when they are asked for or replaced.

    Attributes:
        row_sync: that of its model; None for a layer outside of the four models.
    """

    row_sync: RowSync | None = None

    def flush(self) -> None:
        """Bring every row up to date, if the optimizer lets rows wait."""
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
    """Mixin of a Keras model around a `SyncedLayer`, `blocks[0]`: what it sees is up to date."""

    @property
    def row_sync(self) -> RowSync:
        """What the layers share."""
        return self.blocks[0].row_sync

    def flush(self) -> None:
        """Bring every row up to date, if the optimizer lets rows wait."""
        self.row_sync.flush()

    @contextmanager
    def flushed_and_detached(self) -> Iterator[None]:
        """Tables up to date, and within the block a graph that has nothing of the optimizer's."""
        self.flush()
        with self.row_sync.using(None):
            yield
