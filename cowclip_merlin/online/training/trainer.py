"""Train a model with growing tables on batches of events."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from cowclip_merlin import compat, models
from cowclip_merlin.batch import Batch, Ids
from cowclip_merlin.errors import InputError
from cowclip_merlin.models.more_columns import GrownWeight, grown_weights
from cowclip_merlin.online.new_columns import grown_variables, more_of
from cowclip_merlin.online.settings import OnlineSettings
from cowclip_merlin.online.sync.served_changes import TableChanges
from cowclip_merlin.optimizer.config import row_slots
from cowclip_merlin.scaling import ADAM_RULES, Hyperparameters
from cowclip_merlin.tables.growing_table import with_more_fields
from cowclip_merlin.tables.snapshot import part_of
from cowclip_merlin.training.build import build_model_of, build_optimizer_of
from cowclip_merlin.training.starting.warm_start import scoring_weights
from cowclip_merlin.training.stopping.falling_rates import factor_after
from cowclip_merlin.training.train_step import check_loss, make_train_step, raising_diverged
from cowclip_merlin.types import Array, Function, Tensor, Variable

if TYPE_CHECKING:
    from merlin.schema import Schema

    from cowclip_merlin.models import CTRModel
    from cowclip_merlin.online.events.events import Events
    from cowclip_merlin.online.events.features import LogFeatures
    from cowclip_merlin.tables import GrowingTable
    from cowclip_merlin.training.run_settings import RunSettings


SCORED_AT_ONCE = 1 << 14
"""Events that `OnlineTrainer.predict` scores in one call."""


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


class OnlineTrainer:
    """One of the five models with growing tables, its optimizer and its table of ids.

    Args:
        settings: of the model and its training.
        features: columns of the log.
        catch_up: times `run.batch_size` that `step` may take at once, with scaled
            hyper-parameters; 1 for no larger batches.

    Attributes:
        model: the Keras model; it reads rows, as `table` returns them.
        optimizer: `CowClip(update="lazy")`.
        table: gives rows to ids.
        tables: the embedding tables, variables [capacity, d].

    Raises:
        InputError: a setting does not fit, or the log has no categorical column.
    """

    form_kind = BatchForm

    def __init__(
        self, settings: OnlineSettings, features: LogFeatures, *, catch_up: int = 1
    ) -> None:
        self.settings, self.features, run = settings, features, settings.run
        num_tables = len(features.tables)
        if not num_tables:
            raise InputError("the features file names no categorical column; name at least one")
        _refuse_unused_filter(settings, features)
        self._varying = run.rule in ADAM_RULES and run.optimizer == "adam"
        if catch_up > 1 and run.rule in ADAM_RULES and not self._varying:
            raise InputError(
                f"catch_up {catch_up} with rule {run.rule!r} needs Adam, but the optimizer is "
                f"{run.optimizer!r}; use another `rule`, or omit `catch_up`"
            )
        values, capacity = run.hyperparameters("table"), settings.reserved_rows(num_tables)
        self.model = build_model_of(
            run,
            values,
            log_schema(features),
            tables="growing",
            capacity=capacity,
            **run.multi_task_of(features.targets),
        )
        self.optimizer = build_optimizer_of(
            run, values, fields=None, warmup_steps=0, varying=self._varying
        )
        self.table = self._make_table(
            fields=features.rules,
            max_rows=settings.max_rows or max(capacity - num_tables, 1),
            index_cells=None if settings.max_rows else 16,  # it grows with the rows in use
            absent=settings.absent,
            admission_filter=settings.admission_filter,
            window=settings.window,
        )
        self.optimizer.create_state(self.model.trainable_variables)
        self.tables = [layer.table for layer in self.model.row_sync.layers]
        self._loss_sum = compat.tensorflow().Variable(0.0, dtype="float64", trainable=False)
        self._batches = self._form()
        self._trained = None  # events so far, which only rates that fall look at
        if settings.lr_events is not None:
            self._trained = compat.tensorflow().Variable(0, dtype="int64", trainable=False)
        self._scaled = cache(lambda batch_factor: scaled(run, batch_factor))
        self._rates_of = 1, 1.0  # batch factor, and factor of rates that fall
        self._steps = {(n, False): self._trace_step(n) for n in sorted({1, catch_up})}
        self._score = self._make_score()

    def _make_table(self, **settings: Any) -> GrowingTable:
        return models.growing_table(self.model, self.optimizer, **settings)

    def _form(self, *, has_offsets: bool = False) -> BatchForm:
        return self.form_kind(
            len(self.features.categorical),
            self.features.num_numbers,
            has_offsets=has_offsets,
            has_weights=self.features.weight is not None,
            multi_valued=bool(self.features.lists),
            num_targets=len(self.features.targets),
        )

    def _make_score(self) -> Function:
        return _make_score(self.model, self._batches)

    def _trace_step(self, batch_factor: int, *, has_offsets: bool = False) -> Function:
        batches = self._form(has_offsets=has_offsets)
        values = self._scaled(batch_factor)
        changes = values.of_rows
        if self._varying:
            unit = _unit(self._scaled(1), values)
            changes |= {"beta_1": values.beta_1, "beta_2": values.beta_2, "squares": unit * unit}
        with self.optimizer.tracing_with(**changes):
            return self._make_step(batches).get_concrete_function()

    def _make_step(self, batches: BatchForm) -> Function:
        return make_train_step(self.model, self.optimizer, batches, self._loss_sum)

    def train(self, events: Events) -> None:
        """Make one step on a batch of events, and drop ids that have expired.

        Raises:
            Diverged: a gradient is not finite.
            InputError: the table is full.
        """
        rows = self.table.admit(events.ids, events.times)
        self.step(rows, events)
        self.table.expire()

    def admit_beside_step(self, events: Events) -> tuple[Ids, Ids]:
        """Give new ids their rows while a step runs; return the rows before, and those now.

        Raises:
            InputError: the table is full.
        """
        known = self.table.lookup(events.ids)  # as a server would see the batch
        return known, self.table.admit(events.ids, events.times, beside_step=True)

    def hold(self, rows: Ids) -> None:
        """Keep the ids of these rows until the next call, as a running step uses the rows."""
        self.table.hold(rows)

    def step(self, rows: Ids, events: Events, *, batch_factor: int = 1) -> None:
        """Make one step on a batch whose ids have their rows.

        Args:
            rows: of `events.ids`, from `table.admit`.
            events: of the batch.
            batch_factor: 1 or `catch_up`; the hyper-parameters are those that the scaling rule
                gives for so many times the batch size.

        Raises:
            Diverged: a gradient is not finite.
        """
        self._set_rates(batch_factor)
        with raising_diverged():
            self._step_for(batch_factor, events)(self._packed(rows, events))
        if self._trained is not None:
            self._trained.assign_add(len(events))

    def _packed(self, rows: Ids, events: Events) -> tuple[Any, ...]:
        """Return a batch in its form."""
        return (self._batches.pack(rows), *columns_of(events))

    def _step_for(self, batch_factor: int, events: Events) -> Function:
        """The graph for a batch; one that is not there is traced, such as that for offsets."""
        key = batch_factor, events.offsets is not None
        if key not in self._steps:
            self._steps[key] = self._trace_step(batch_factor, has_offsets=key[1])
        return self._steps[key]

    def _set_rates(self, batch_factor: int) -> None:
        now = batch_factor, self._fallen()
        if now == self._rates_of:
            return
        self._rates_of, unit = now, _unit(self._scaled(1), self._scaled(batch_factor))
        embedding_lr, dense_lr = self._rates(*now)
        self.optimizer.embedding_optimizer.learning_rate = embedding_lr * unit
        self.optimizer.dense_optimizer.learning_rate = dense_lr * unit

    def _fallen(self) -> float:
        """Return the factor of the rates after the events so far."""
        settings, tf = self.settings, compat.tensorflow()
        if self._trained is None:
            return 1.0
        share = int(self._trained.numpy()) / settings.lr_events
        return float(factor_after(tf.constant(share, tf.float32), settings.run))

    @property
    def learning_rates(self) -> tuple[float, float]:
        """The next step's rates of the embeddings and of the dense weights, if its size stays."""
        return self._rates(self._rates_of[0], self._fallen())

    def _rates(self, batch_factor: int, factor: float) -> tuple[float, float]:
        values = self._scaled(batch_factor)
        return values.embedding_lr * factor, values.dense_lr * factor

    def predict(self, events: Events) -> Array:
        """Return click probabilities of events, float32 [n]; nothing is counted or created.

        With several targets the predictions of each, [n, T].
        """
        return self.score(self.table.lookup(events.ids), events.numbers)

    def score(self, rows: Ids, numbers: Array) -> Array:
        """Return click probabilities of events whose rows are known, as `predict` does.

        Args:
            rows: from `table.lookup`.
            numbers: continuous columns and vectors, float32 [n, C].
        """
        parts = [
            slice(first, first + SCORED_AT_ONCE)
            for first in range(0, max(rows.num_rows, 1), SCORED_AT_ONCE)
        ]
        pack = self._batches.pack
        scores = [self._score(pack(rows.take(p)), numbers[p]).numpy() for p in parts]
        return np.concatenate(scores)

    def served_changes(self) -> TableChanges:
        """Start to remember changes for servers."""
        return TableChanges(self.table)

    def check_loss(self) -> None:
        """Raise `Diverged` if a loss since the start was not finite."""
        check_loss(float(self._loss_sum.numpy()), 1)

    def dense_weights(self) -> list[Array]:
        """Return a copy of all that scores need besides rows, in the order of their variables."""
        return [variable.numpy() for variable in self.dense_variables]

    @property
    def dense_variables(self) -> list[Variable]:
        """Dense weights in the model's order, then moving means and variances."""
        return scoring_weights(self.model)

    def state(self) -> dict[str, Array]:
        """What `restore` needs, by name; most are views, so write them before the next step."""
        arrays = {f"table.{name}": x for name, x in self.table.state().items()}
        return arrays | {name: x.numpy() for name, x in self._other_variables().items()}

    def restore(self, state: Mapping[str, Array], *, lacking: Collection[str] = ()) -> None:
        """Take over a state; this trainer must be new.

        Args:
            state: of `state`.
            lacking: columns that the trainer of the state did not have, the last of their kind.

        Raises:
            InputError: the state is of another model.
        """
        table, variables = part_of(state, "table."), self._other_variables()
        if lacking:
            table = with_more_fields(
                table, len(self.features.tables), self.features.table_of_column
            )
            state = grown_variables(state, variables, self.new_weights(lacking))
        self.table.restore(table)
        for name, variable in variables.items():
            if name not in state or state[name].shape != tuple(variable.shape):
                raise InputError("the snapshot is of another model; use the same settings")
            variable.assign(state[name])

    def new_weights(self, lacking: Collection[str]) -> dict[str, GrownWeight]:
        """Return how the variables besides the tables come from those without some columns.

        Args:
            lacking: the columns, the last of their kind.

        Raises:
            InputError: the model cannot get such columns.
        """
        if self.settings.run.optimizer != "adam":  # whose new weights begin with state of zeros
            raise InputError(
                f"columns cannot be added to a stream with the optimizer "
                f"{self.settings.run.optimizer!r}: begin a new stream, or use adam"
            )
        weights = grown_weights(self.model, self.dense_variables, more_of(self.features, lacking))
        of_variable = {
            id(compat.stored(part)): weight
            for variable, weight in zip(self.dense_variables, weights, strict=True)
            for part in (variable, *self._moments_of(variable))
        }
        variables = self._other_variables().items()
        return {k: of_variable.get(id(compat.stored(v)), GrownWeight()) for k, v in variables}

    def _moments_of(self, variable: Variable) -> list[Variable]:
        """Return what the optimizer keeps of a dense weight; of moving statistics nothing."""
        dense = self.optimizer.dense_optimizer
        slots = row_slots(dense) if variable.trainable else ()
        return [dense.get_slot(variable, name) for name in slots]

    def _other_variables(self) -> dict[str, Variable]:
        """All variables but the tables and their state, by the names of a snapshot."""
        names, inner = self.optimizer.row_slots, self.optimizer.embedding_optimizer
        slots = [inner.get_slot(table, name) for table in self.tables for name in names]
        rows = {id(compat.stored(slot)) for slot in slots}
        own = [v for v in self.optimizer.weights if id(compat.stored(v)) not in rows]
        dense = self.dense_variables
        known = {id(compat.stored(v)) for v in dense}
        others = self.model.blocks[0].non_trainable_variables  # counts of dropout, statistics
        counts = [v for v in others if id(compat.stored(v)) not in known]
        named = {f"dense{i}": v for i, v in enumerate(dense)}
        named |= {f"count{i}": v for i, v in enumerate(counts)}
        named |= {f"optimizer{i}": v for i, v in enumerate(own)}
        named |= {} if self._trained is None else {"trained": self._trained}
        return named | {"loss": self._loss_sum}


def scaled(run: RunSettings, batch_factor: int) -> Hyperparameters:
    """The hyper-parameters for so many times the run's batch size."""
    return replace(run, batch_size=batch_factor * run.batch_size).hyperparameters("table")


def _unit(usual: Hyperparameters, large: Hyperparameters) -> float:
    """The root of second moments at the run's batch, relative to those at the large batch.

    Gradients of a large batch have less noise, and epsilon follows them. The moments of all steps
    must have one unit, that of the run's batch. So the step of a large batch multiplies squared
    gradients by the square of this number. Rates and epsilon of the step are multiplied by it, too.
    """
    return usual.epsilon / large.epsilon


def _make_score(model: CTRModel, batches: BatchForm) -> Function:
    """Return a graph of rows [b, F] and numbers [b, C] that returns what `values_of` does."""
    from cowclip_merlin.models import multi_task

    tf = compat.tensorflow()

    @tf.function(input_signature=batches.signature[:2], autograph=False)
    def score(*batch: Ids | Tensor) -> Tensor:
        z = models.logits(model, batches.unpack(batch), training=False)
        return multi_task.values_of(z, model.blocks[0].columns.targets)

    return score


def _refuse_unused_filter(settings: OnlineSettings, features: LogFeatures) -> None:
    given = [
        name
        for name in ("admission_filter", "window")
        if getattr(settings, name) != getattr(OnlineSettings, name)
    ]
    if given and all(rules.admit == 1 for rules in features.rules.values()):
        raise InputError(
            f"{given[0]} has no effect, since no column of the features file has `admit` above 1; "
            "remove it, or set `admit`"
        )


def log_schema(features: LogFeatures) -> Schema:
    """Return the Merlin schema of a log's columns."""
    return models.growing_schema(
        categorical=[column.name for column in features.categorical],
        continuous=[column.name for column in features.continuous],
        label=features.label,
        more_labels=features.more_labels,
        regression=features.regression,
        combiners={name: rules.combiner for name, rules in features.lists.items()},
        share_embedding=features.shared,
        vectors=features.lengths,
        scales=features.scales,
    )


class StepPipeline:
    """Trains batches in their order. Results do not depend on the timing of the thread.

    The steps are those of `admit`, `hold`, step and `expire` for each batch, one after the other.

    Args:
        trainer: its model, optimizer and table.
        scored: is called with labels int8 [b], probabilities float32 [b] and weights float32 [b] or
            None of each batch, scored before its step, in the thread.
    """

    def __init__(
        self, trainer: OnlineTrainer, scored: Callable[[Array, Array, Array | None], None]
    ) -> None:
        self._trainer, self._scored = trainer, scored
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="step")
        self._running: Future[None] | None = None

    def submit(self, events: Events, batch_factor: int = 1) -> None:
        """Begin the step of a batch, when that of the batch before has ended.

        Raises:
            InputError: the table is full, or TensorFlow had moved its memory at the batch before.
            Diverged: a gradient of the batch before was not finite.
        """
        known, rows = self._trainer.admit_beside_step(events)
        self.wait()
        self._trainer.hold(rows)
        self._running = self._threads.submit(self._step, known, rows, events, batch_factor)
        self._trainer.table.expire()

    def wait(self) -> None:
        """Wait until the running step has ended, if there is one."""
        if self._running is not None:
            running, self._running = self._running, None
            running.result()

    def close(self) -> None:
        """Wait for the running step, and end the thread."""
        self._threads.shutdown(wait=True)

    def _step(self, known: Ids, rows: Ids, events: Events, batch_factor: int) -> None:
        self._trainer.table.check_memory()  # of the new rows, before the model reads them
        scores = self._trainer.score(known, events.numbers)
        if events.offsets is not None:
            scores = of_sampled(scores, events.offsets)
        self._scored(events.labels, scores, events.weights)
        self._trainer.step(rows, events, batch_factor=batch_factor)


def of_sampled(probabilities: Array, offsets: Array) -> Array:
    """Return the click probabilities of events whose negatives were sampled, float32 [n].

    Args:
        probabilities: of all events.
        offsets: log of the rate with which negatives were kept.

    >>> of_sampled(np.array([0.1]), np.log([0.1])).round(3)
    array([0.526])
    """
    return probabilities / (probabilities + (1 - probabilities) * np.exp(offsets))
