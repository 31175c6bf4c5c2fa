"""One of several workers that train a stream together: what all agree on, and its share of a step.

All workers run the same program. Worker 0 decides each step, every worker hears it, and then they
execute it: each trains on its part of the batch, and has the rows of its ids.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from cowclip_merlin import compat, models
from cowclip_merlin.batch import Batch, Ids, Requests
from cowclip_merlin.errors import InputError
from cowclip_merlin.models.growing import growing_shard
from cowclip_merlin.online.settings import OnlineSettings
from cowclip_merlin.online.sync.served_changes import ChangedRows, TableChanges
from cowclip_merlin.online.training.steps import Do, Step
from cowclip_merlin.online.training.trainer import BatchForm, OnlineTrainer, columns_of, scaled
from cowclip_merlin.tables.expiry import Dropped
from cowclip_merlin.tables.growing_shard import GrowingShard, Pairs
from cowclip_merlin.tables.layout import TableStatistics
from cowclip_merlin.tables.serving_table import Changes
from cowclip_merlin.types import Array, Function, Tensor
from cowclip_merlin.workers import Workers
from cowclip_merlin.workers.agreement import arrays_of_all, numbers_of_all, texts_of_all
from cowclip_merlin.workers.collectives import gather_rows, sum_over
from cowclip_merlin.workers.shards import ask

if TYPE_CHECKING:
    from cowclip_merlin.online.events.events import Events
    from cowclip_merlin.online.events.features import LogFeatures


class About(NamedTuple):
    """What a worker tells of itself before each step.

    Attributes:
        signal_number: the signal that it received; 0 before any.
        rows: ids that have a row there.
        expired: ids that it dropped by their time to live.
        evicted: ids that it dropped by the bound.
        refused: occurrences that it did not admit.
        breaks: of its `TableChanges`.
    """

    signal_number: int = 0
    rows: int = 0
    expired: int = 0
    evicted: int = 0
    refused: int = 0
    breaks: int = 0

    @classmethod
    def of(cls, table: TableStatistics, *, signal_number: int = 0, breaks: int = 0) -> About:
        """Return what there is to tell."""
        counts = sum(table.rows), table.expired, table.evicted, table.refused
        return cls(signal_number, *counts, breaks)

    @classmethod
    def sum(cls, every: list[About]) -> About:
        """Return the sums over workers."""
        return cls(*map(sum, zip(*every)))


def agree(group: Workers, step: Step | None, own: About) -> tuple[Step, list[About]]:
    """Return the next step, and what the other workers tell of themselves.

    Args:
        group: this process and the others.
        step: of worker 0; the others give None.
        own: of this worker.
    """
    told = [json.loads(text) for text in texts_of_all(group, json.dumps([own, step]))]
    until, factor, now, do, number = told[0][1]
    others = [About(*about) for rank, (about, _) in enumerate(told) if rank != group.rank]
    return Step(tuple(until), factor, now, Do(do), number), others


def refuse_other_events(group: Workers | None, count: int) -> None:
    """Refuse a step of which not all workers have read as many events: they would hang.

    Args:
        group: this process and the others.
        count: events that this worker has read.

    Raises:
        InputError: on all workers, if one has read more or less than worker 0.
    """
    counts = numbers_of_all(group, count)
    for rank, each in enumerate(counts):
        if each != counts[0]:
            raise InputError(
                f"worker {rank} ({group.addresses[rank]}) has read {each:,.0f} events of a step, "
                f"worker 0 {counts[0]:,.0f}; let all workers read the same log"
            )


class ShardChanges(TableChanges):
    """The changes of all workers for the servers: every worker calls the same methods.

    Args:
        table: of this worker; its state may be restored after this.
        group: this process and the others.
    """

    def __init__(self, table: GrowingShard, group: Workers) -> None:
        super().__init__(table)
        self._group, self._num_fields = group, table.num_fields

    def collect(self) -> ChangedRows:
        """Return all that has changed on all workers; see `TableChanges`."""
        return gather_changes(self._group, super().collect(), self._num_fields)


def gather_changes(group: Workers, own: ChangedRows, num_fields: int) -> ChangedRows:
    """Join the changes of all workers; each of them must call this.

    Args:
        group: this process and the others.
        own: of this worker.
        num_fields: F; the rows below it are on all workers, with equal values.

    Returns:
        The changes. The numbers of rows are their places, but those below F are as they were.
    """
    changes, values = own
    widths = [x.shape[1] for x in values]
    columns = [
        changes.rows.astype(np.int64)[:, None],
        changes.fields[:, None],
        changes.ids[:, None],
    ]
    packed = np.concatenate([*columns, _bits(np.concatenate(values, axis=1))], axis=1)
    gone = np.stack([changes.gone.fields, changes.gone.ids], axis=1)
    every = [_of_all(group, x) for x in (packed, gone)]
    rows, order = _numbered(every[0][:, 0], num_fields)
    packed = every[0][order]
    floats = packed[:, 3:].copy().view(np.float32)[:, : sum(widths)]
    values = [np.ascontiguousarray(x) for x in np.split(floats, np.cumsum(widths)[:-1], axis=1)]
    gone = Dropped(*np.ascontiguousarray(every[1].T))
    return ChangedRows(Changes(rows, packed[:, 1].copy(), packed[:, 2].copy(), gone), values)


def _of_all(group: Workers, own: Array) -> Array:
    """Return the lines of all workers, int64 [n, k]."""
    parts = arrays_of_all(group, np.ascontiguousarray(own).reshape(-1))
    return np.concatenate(parts).reshape(-1, own.shape[1])


def _numbered(rows: Array, num_fields: int) -> tuple[Array, Array]:
    """Number the rows of all workers; return the numbers, and which lines have them.

    A row below F occurs once, and comes before the others.
    """
    shared, first = np.unique(rows, return_index=True)
    first = first[shared < num_fields]
    others = np.flatnonzero(rows >= num_fields)
    numbers = np.concatenate([rows[first], num_fields + np.arange(len(others))])
    return numbers.astype(np.int32), np.concatenate([first, others])


def _bits(values: Array) -> Array:
    """Return float32 [n, d] as int64 [n, ceil(d / 2)]."""
    padded = np.pad(values, [(0, 0), (0, values.shape[1] % 2)])
    return np.ascontiguousarray(padded).view(np.int64)


class ShardRows(NamedTuple):
    """The rows of this worker's part of a batch.

    Attributes:
        requests: for rows of the tables.
        lengths: with multi-valued columns, number of ids in each column, int32 [b, F].
    """

    requests: Requests
    lengths: Array | None

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


class ShardTrainer(OnlineTrainer):
    """An `OnlineTrainer` of which every worker has one.

    All workers call the same methods with the same batches. Each trains on its part of the batch,
    and has the rows of its ids. The sums and counts are those of the whole batch, so the workers
    train what one process trains, except for rounding.

    Args:
        settings: of the model and its training.
        features: columns of the log.
        group: this process and the others.
        catch_up: as in `OnlineTrainer`.

    Raises:
        InputError: a setting does not fit, or needs one process.
    """

    table: GrowingShard
    form_kind = ShardForm

    def __init__(
        self,
        settings: OnlineSettings,
        features: LogFeatures,
        group: Workers,
        *,
        catch_up: int = 1,
    ) -> None:
        self.group = group
        _refuse_micro_batches(settings, catch_up)
        super().__init__(settings, features, catch_up=catch_up)

    def _make_table(self, **settings: Any) -> GrowingShard:
        return growing_shard(self.model, self.optimizer, self.group, **settings)

    def _make_score(self) -> Function:
        """Return a graph of ids, numbers [b, C] and sizes [N] to all workers' probabilities."""
        tf, form, group = compat.tensorflow(), self._form(), self.group
        numbers = tf.TensorSpec([None, self.features.num_numbers], tf.float32)
        sizes = tf.TensorSpec([group.size], tf.int32)

        @tf.function(input_signature=[(*form.ids, numbers, sizes)], autograph=False)
        def score(batch: tuple[Any, ...]) -> Tensor:
            ids, requests, (numbers, sizes) = form.unpack_ids(batch)
            batch = Batch(ids, numbers, requests=requests)
            part = tf.sigmoid(models.logits(self.model, batch, training=False))
            return gather_rows(group, part, sizes, "scores")[:, 0]

        return score.get_concrete_function()

    def _make_step(self, batches: ShardForm) -> Function:
        """Return a step after which all workers have one mean of their moving statistics.

        Each worker counts by its events. So all of them score as servers do.
        """
        step, moving = super()._make_step(batches), self.model.blocks[0].statistics
        if not moving:
            return step
        tf = compat.tensorflow()

        @tf.function(input_signature=[batches.signature], autograph=False)
        def step_and_average(batch: tuple[Any, ...]) -> None:
            step(batch)
            events = tf.shape(batches.unpack(batch).labels)[0]
            own = tf.concat([*(x.read_value() for x in moving), [1.0]], axis=0)
            total = sum_over(self.group, tf.cast(events, tf.float32) * own, "moving statistics")
            means = tf.split(total[:-1] / total[-1], [x.shape[0] for x in moving])
            for variable, mean in zip(moving, means, strict=True):
                variable.assign(mean)

        return step_and_average

    def admit_beside_step(self, events: Events) -> tuple[ShardRows, ShardRows]:
        """Give new ids their rows while a step runs; return the rows before, and those now."""
        own = events.filter(self._part(len(events)))
        pairs, place = self.table.split(own.ids, own.times)
        asked = ask(self.group, pairs.packed(), self.table.owners(pairs))
        received = Pairs.unpacked(asked.received)
        before = self.table.lookup_pairs(received)
        clock = int(events.times.max(initial=0))
        now = self.table.admit_pairs(received, events=len(events), clock=clock)
        requests = Requests(
            rows=now,
            counts=received.counts.astype(np.int32),
            places=asked.places,
            answered=asked.sent[place].reshape(own.ids.values.shape),
            size=np.array(asked.size),
            step=np.array(asked.step),
        )
        rows = ShardRows(requests, own.ids.lengths)
        return rows._replace(requests=requests._replace(rows=before)), rows

    def _part(self, count: int) -> slice:
        """This worker's part of a batch of so many events."""
        return slice(*self.group.part_of(count))

    def hold(self, rows: ShardRows) -> None:
        """Keep the ids of these rows until the next call, as a running step uses the rows."""
        self.table.hold(rows.requests.rows)

    def _packed(self, rows: ShardRows, events: Events) -> tuple[Any, ...]:
        """Return this worker's part of a batch in its form."""
        total = len(events) if events.weights is None else events.weights.sum()
        part = columns_of(events.filter(self._part(len(events))))
        return (*rows.inputs, *part, np.array(total, np.float32))

    def score(self, rows: ShardRows, numbers: Array) -> Array:
        """Return click probabilities of all events of a batch, float32 [n].

        Args:
            rows: from `admit_beside_step`.
            numbers: continuous columns and vectors of all events, float32 [n, C].
        """
        ends = len(numbers) * np.arange(self.group.size + 1) // self.group.size
        own = numbers[self._part(len(numbers))]
        return self._score((*rows.inputs, own, np.diff(ends).astype(np.int32))).numpy()

    def train(self, events: Events) -> None:
        """Make one step on a batch of events, and drop ids that have expired."""
        self.table.check_memory()
        _, rows = self.admit_beside_step(events)
        self.step(rows, events)
        self.table.expire()

    def served_changes(self) -> ShardChanges:
        """Start to remember the changes of all workers for servers."""
        return ShardChanges(self.table, self.group)

    def predict(self, events: Events) -> NoReturn:
        """Refuse: a worker does not have all rows."""
        raise InputError(f"{self.group} cannot predict by itself; serve the model from its syncs")


def _refuse_micro_batches(settings: OnlineSettings, catch_up: int) -> None:
    run = settings.run
    for factor in {1, catch_up}:
        if scaled(run, factor).micro_batches > 1:
            raise InputError(
                f"rule {run.rule!r} needs micro-batches, which several workers do not have; use "
                "another `rule`, or one worker"
            )
