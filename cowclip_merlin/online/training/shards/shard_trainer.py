"""One of several workers that train a model with growing tables together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from cowclip_merlin import compat, models
from cowclip_merlin.batch import Batch, Requests
from cowclip_merlin.errors import InputError
from cowclip_merlin.models.growing import growing_shard
from cowclip_merlin.online.settings import OnlineSettings
from cowclip_merlin.online.sync.served_changes import ServedChanges, TableChanges
from cowclip_merlin.online.training.shards.changes_of_all import ChangesOfAll
from cowclip_merlin.online.training.shards.shard_form import ShardForm, ShardRows
from cowclip_merlin.online.training.shards.turns import Conductor
from cowclip_merlin.online.training.trainer import OnlineTrainer, scaled
from cowclip_merlin.tables.growing_shard import GrowingShard, Pairs
from cowclip_merlin.types import Array, Function, Tensor
from cowclip_merlin.workers import Workers
from cowclip_merlin.workers.collectives import gather_rows, sum_over
from cowclip_merlin.workers.shards import ask

if TYPE_CHECKING:
    from cowclip_merlin.online.events.events import Events
    from cowclip_merlin.online.events.features import LogFeatures


class ShardTrainer(OnlineTrainer):
    """An `OnlineTrainer` of which every worker has one.

    All workers call the same methods with the same batches. Each trains on the events that it has
    decoded, or else on its part of the batch, and has the rows of its ids. The sums and counts are
    those of the whole batch, so the workers train what one process trains, except for rounding.

    Args:
        settings: of the model and its training.
        features: columns of the log.
        group: this process and the others.
        catch_up: as in `OnlineTrainer`.
        conductor: on worker 0, tells the others what to do; None: the caller does.

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
        conductor: Conductor | None = None,
    ) -> None:
        self.group, self._conductor = group, conductor
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
        worker = self._worker_of(events)
        own = events.filter(worker == self.group.rank)
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
        rows = ShardRows(requests, own.ids.lengths, worker, self.group.rank, self.group.size)
        return replace(rows, requests=requests._replace(rows=before)), rows

    def _worker_of(self, events: Events) -> Array:
        """Return the worker that trains on each event, integer [n]: the one that has its ids."""
        if events.worker is not None:
            return events.worker
        ends = len(events) * np.arange(self.group.size + 1) // self.group.size
        return np.repeat(np.arange(self.group.size), np.diff(ends))

    def hold(self, rows: ShardRows) -> None:
        """Keep the ids of these rows until the next call, as a running step uses the rows."""
        self.table.hold(rows.requests.rows)

    def _packed(self, rows: ShardRows, events: Events) -> tuple[Any, ...]:
        return self._batches.packed(rows, events)

    def score(self, rows: ShardRows, numbers: Array) -> Array:
        """Return click probabilities of all events of a batch, float32 [n].

        Args:
            rows: from `admit_beside_step`.
            numbers: continuous columns and vectors of all events, float32 [n, C].
        """
        by_worker = self._score((*rows.inputs, numbers[rows.part], rows.sizes)).numpy()
        scores = np.empty_like(by_worker)
        scores[np.argsort(rows.worker, kind="stable")] = by_worker
        return scores

    def train(self, events: Events) -> None:
        """Make one step on a batch of events, and drop ids that have expired."""
        self.table.check_memory()
        _, rows = self.admit_beside_step(events)
        self.step(rows, events)
        self.table.expire()

    def served_changes(self) -> ServedChanges:
        """Start to remember the changes of all workers for servers; on worker 0."""
        own = TableChanges(self.table)
        if self._conductor is None:
            return own
        return ChangesOfAll(self._conductor, own, self.table.num_fields)

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
