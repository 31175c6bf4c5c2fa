"""The form in which a step gets a batch of events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin import compat
from cowclip_merlin.batch import Batch, Ids
from cowclip_merlin.types import Array, Tensor

if TYPE_CHECKING:
    from cowclip_merlin.online.events.events import Events


class BatchForm:
    """The form of a batch, for `make_train_step`: table rows [b, F], numbers [b, C], labels [b].

    With several targets, the labels are [b, T]. With multi-valued columns, the table rows are
    `Ids`: values [m], and lengths [b, F].

    Args:
        num_fields: F.
        num_numbers: C.
        has_offsets: whether offsets [b] of the logits follow.
        has_weights: whether weights [b] of the events follow then.
        multi_valued: whether there are multi-valued columns.
        num_targets: T.
    """

    def __init__(
        self,
        num_fields: int,
        num_numbers: int,
        *,
        has_offsets: bool = False,
        has_weights: bool = False,
        multi_valued: bool = False,
        num_targets: int = 1,
    ) -> None:
        tf = compat.tensorflow()
        self._multi_valued = multi_valued
        matrix = tf.TensorSpec([None, num_fields], tf.int32)
        self.signature = (
            Ids(tf.TensorSpec([None], tf.int32), matrix) if multi_valued else matrix,
            tf.TensorSpec([None, num_numbers], tf.float32),
            tf.TensorSpec([None] if num_targets == 1 else [None, num_targets], tf.float32),
        )
        more = {"offsets": has_offsets, "weights": has_weights}
        self._more = [name for name, given in more.items() if given]
        self.signature += (tf.TensorSpec([None], tf.float32),) * len(self._more)

    def pack(self, rows: Ids) -> Ids | Array:
        """Return table rows as a batch has them."""
        return rows.multi_valued() if self._multi_valued else rows.values

    def unpack(self, batch: tuple[Ids | Tensor, ...]) -> Batch:
        """Return the columns of a batch."""
        rows, *columns = batch
        more = dict(zip(self._more, columns[2:]))
        return Batch(rows if isinstance(rows, Ids) else Ids(rows), *columns[:2], **more)

    def sum_of_weights(self, batch: tuple[Ids | Tensor, ...]) -> Tensor:
        """Return the sum of the weights of a batch, float32."""
        return compat.tensorflow().reduce_sum(self.unpack(batch).weights)


def columns_of(events: Events) -> tuple[Array, ...]:
    """Return numbers, labels, and if there are any offsets and weights, in the order of a batch."""
    more = (x for x in (events.offsets, events.weights) if x is not None)
    return (events.numbers, events.labels.astype(np.float32), *more)
