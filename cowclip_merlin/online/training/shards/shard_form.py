"""The form in which the step of one of several workers gets its part of a batch of events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cowclip_merlin import compat
from cowclip_merlin.batch import Batch, Ids, Requests
from cowclip_merlin.online.training.steps.batch_form import BatchForm, columns_of
from cowclip_merlin.types import Array, Tensor

if TYPE_CHECKING:
    from cowclip_merlin.online.events.events import Events


@dataclass(frozen=True)
class ShardRows:
    """The rows of this worker's part of a batch.

    Attributes:
        requests: for rows of the tables.
        lengths: with multi-valued columns, number of ids in each column, int32 [b, F].
        worker: rank of the worker that trains on each event of the batch, integer [n].
        rank: of this worker.
        size: number of workers.
    """

    requests: Requests
    lengths: Array | None
    worker: Array
    rank: int
    size: int

    @property
    def part(self) -> Array:
        """This worker's events in the batch, bool [n]."""
        return self.worker == self.rank

    @property
    def sizes(self) -> Array:
        """Events of each worker, int32 [N]."""
        return np.bincount(self.worker, minlength=self.size).astype(np.int32)

    @property
    def inputs(self) -> tuple[Any, ...]:
        """What a graph gets for the ids."""
        return (self.requests,) if self.lengths is None else (self.requests, self.lengths)


class ShardForm(BatchForm):
    """The form of a part: requests, [lengths,] numbers, labels, [offsets, weights,] total.

    The total is the number of events in the whole batch, or the sum of their weights. The arguments
    are those of `BatchForm`.
    """

    def __init__(self, num_fields: int, num_numbers: int, **more: Any) -> None:
        super().__init__(num_fields, num_numbers, **more)
        tf = compat.tensorflow()
        some, one = tf.TensorSpec([None], tf.int32), tf.TensorSpec([], tf.int32)
        matrix = tf.TensorSpec([None, num_fields], tf.int32)
        answered = some if self._multi_valued else matrix
        self.ids = (
            Requests(rows=some, counts=some, places=some, answered=answered, size=one, step=one),
            *([matrix] * self._multi_valued),
        )
        total = tf.TensorSpec([], tf.float32)
        self.signature = (*self.ids, *self.signature[1:], total)

    def packed(self, rows: ShardRows, events: Events) -> tuple[Any, ...]:
        """Return this worker's part of a batch in its form."""
        total = len(events) if events.weights is None else events.weights.sum()
        part = columns_of(events.filter(rows.part))
        return (*rows.inputs, *part, np.array(total, np.float32))

    def unpack_ids(self, batch: tuple[Any, ...]) -> tuple[Ids, Requests, list[Tensor]]:
        """Return ids, requests, and what follows."""
        requests, *columns = batch
        lengths = columns.pop(0) if self._multi_valued else None
        return Ids(requests.answered, lengths), requests, columns

    def unpack(self, batch: tuple[Any, ...]) -> Batch:
        """Return the columns of a batch."""
        ids, requests, columns = self.unpack_ids(batch)
        more = dict(zip(self._more, columns[2:-1]))
        return Batch(ids, *columns[:2], **more, requests=requests)

    def count(self, batch: tuple[Any, ...]) -> Tensor:
        """Return the total of the whole batch, float32."""
        return batch[-1]

    def sum_of_weights(self, batch: tuple[Any, ...]) -> Tensor:
        """Return the total of the whole batch, float32."""
        return batch[-1]

    def part(self, batch: tuple[Any, ...], first: Tensor, end: Tensor) -> tuple[Any, ...]:
        """Return the batch, which is this worker's part already."""
        return batch
