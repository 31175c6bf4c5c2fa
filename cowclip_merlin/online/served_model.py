"""One model that answers requests while messages of a sync log, which it checks, change it."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cowclip_merlin import compat
from cowclip_merlin.addresses import FilePath, path_of
from cowclip_merlin.batch import Ids
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.new_columns import grown_variables, lacking_in, more_of
from cowclip_merlin.online.run_config import load_online_config
from cowclip_merlin.online.settings import OnlineSettings
from cowclip_merlin.online.sync.sync_message import (
    DENSE,
    GONE,
    ROWS,
    SYNCED,
    SyncMessage,
    changes_of,
)
from cowclip_merlin.tables.growing_shard import GrowingParts
from cowclip_merlin.tables.growing_table import with_more_fields
from cowclip_merlin.tables.id_map import cells_for
from cowclip_merlin.tables.serving_table import ServingTable
from cowclip_merlin.tables.snapshot import load_part, part_of
from cowclip_merlin.types import Array, Json, Tensor

if TYPE_CHECKING:
    import numpy.typing as npt

    from cowclip_merlin.online.events.events import Events
    from cowclip_merlin.online.events.features import LogFeatures
    from cowclip_merlin.training.run_settings import RunSettings


READERS = 16
"""Readers that may hold a lock at the same moment."""


class SharedLock:
    """Held by any number of readers up to `READERS`, or by one writer.

    A writer that waits keeps new readers out. A plain lock would not do: a thread that releases it
    and asks again at once often gets it before a thread that has waited.

    >>> lock = SharedLock()
    >>> with lock.reading(), lock.reading():
    ...     pass
    >>> with lock.writing():
    ...     pass
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()  # held for a moment by readers, and by a writer to its end
        self._places = threading.Semaphore(READERS)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Keep writers out within the block."""
        with self._turn:
            self._places.acquire()
        try:
            yield
        finally:
            self._places.release()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keep everyone else out within the block."""
        with self._turn:
            for _ in range(READERS):
                self._places.acquire()
            try:
                yield
            finally:
                self._places.release(READERS)


def check_message(message: SyncMessage, table: ServingTable) -> None:
    """Check the arrays of a message.

    Compiled loops use fields as places in arrays, so a wrong one would damage memory.

    Raises:
        InputError: the arrays are not those of this table, or not dense weights.
    """
    if message.kind in (GONE, ROWS):
        _check_rows(message, table)
    if message.kind == DENSE:
        wanted = {f"dense{i}" for i in range(len(message.arrays))}
        if set(message.arrays) != wanted or any(
            x.dtype.kind != "f" for x in message.arrays.values()
        ):
            _refuse(message, f"has dense weights {', '.join(message.arrays):.60}")


def _check_rows(message: SyncMessage, table: ServingTable) -> None:
    wanted = {"fields": (np.int64, ()), "ids": (np.int64, ())}
    wanted |= {f"table{i}": (np.float32, x.shape[1:]) for i, x in enumerate(table.tables)}
    found = {name: (x.dtype, x.shape[1:]) for name, x in message.arrays.items()}
    if found != wanted:
        _refuse(message, f"has {_text(found)} instead of {_text(wanted)}")
    n = {len(x) for name, x in message.arrays.items() if message.kind == ROWS or name in _PAIR}
    fields, absent = message.arrays["fields"], message.info.get("absent", 0)
    if len(n) > 1:
        _refuse(message, "has columns of different lengths")
    if len(fields) and not 0 <= fields.min() <= fields.max() < table.num_fields:
        _refuse(message, f"names fields beyond the {table.num_fields} of the model")
    if type(absent) is not int or not 0 <= absent <= len(fields):
        _refuse(message, f"counts {absent!r:.20} rows of absent ids")


_PAIR = ("fields", "ids")


def _text(arrays: dict[str, tuple[npt.DTypeLike, tuple[int, ...]]]) -> str:
    return ", ".join(f"{k} {np.dtype(dtype)}{list(shape)}" for k, (dtype, shape) in arrays.items())


def _refuse(message: SyncMessage, what: str) -> None:
    raise InputError(
        f"message {message.seq} of generation {message.generation} {what}; it is of another model"
    )


_WEIGHTS = "dense"  # what the names of the weights in a state begin with; numbers follow
_TABLE, _DENSE = "trainer.table.", f"trainer.{_WEIGHTS}"  # names in a snapshot


class Version(NamedTuple):
    """Which model made a prediction.

    Attributes:
        generation: counts the starts of the trainer.
        seq: number of the last complete sync in its generation.
        info: what the trainer said about that sync; empty before the first one.
    """

    generation: int
    seq: int
    info: Mapping[str, Json]


class Prediction(NamedTuple):
    """Answers for some events.

    Attributes:
        probabilities: of a click, float32 [b]; with several targets their predictions, [b, T].
        version: of the model.
        absent: ids of the events that have no row.
    """

    probabilities: Array
    version: Version
    absent: int


class DenseScorer:
    """The part of a model behind its embedding lookups, with its own dense weights.

    Args:
        run: settings of the model.
        features: columns of the log.
    """

    def __init__(self, run: RunSettings, features: LogFeatures) -> None:
        from cowclip_merlin.models import multi_task
        from cowclip_merlin.models.features import Features
        from cowclip_merlin.online.training.trainer import log_schema
        from cowclip_merlin.training.build import build_model_of
        from cowclip_merlin.training.starting.warm_start import scoring_weights

        tf, fields = compat.tensorflow(), len(features.categorical)
        # The tables of this model stay empty: rows come from outside.
        model = build_model_of(
            run,
            run.hyperparameters("table"),
            log_schema(features),
            tables="growing",
            capacity=fields + 1,
            **run.multi_task_of(features.targets),
        )
        self.variables, block = scoring_weights(model), model.blocks[0]
        cells = [None] if features.lists else [None, fields]
        rows = [tf.TensorSpec([*cells, layer.dim]) for layer in model.row_sync.layers]
        numbers = tf.TensorSpec([None, features.num_numbers])
        lengths = [tf.TensorSpec([None, fields], tf.int32)] * bool(features.lists)

        @tf.function(input_signature=[rows, numbers, *lengths], autograph=False)
        def score(rows: list[Tensor], numbers: Tensor, *lengths: Tensor) -> Tensor:
            rows = [block.combine(each, Ids(None, *lengths)) for each in rows]
            wide = tf.concat(rows[1:], axis=2) if len(rows) > 1 else None
            z = block.logits_of(Features(rows[0], wide, numbers))
            found = multi_task.values_of(tf.cast(z, tf.float32), features.targets)
            return found if len(features.targets) > 1 else tf.reshape(found, [-1])

        # TensorFlow would warn of new functions in a loop when there are many copies.
        self._score = score.get_concrete_function()
        self._model, self._features = model, features  # the model keeps the variables alive

    def set_weights(self, weights: Sequence[Array]) -> None:
        """Take over dense weights, in the model's order.

        Raises:
            InputError: they are not those of this model.
        """
        shapes = [tuple(np.shape(x)) for x in weights]
        own = [tuple(variable.shape) for variable in self.variables]
        if shapes != own:
            raise InputError(
                f"dense weights have shapes {shapes}, not {own}; they are of another model"
            )
        for variable, value in zip(self.variables, weights, strict=True):
            variable.assign(np.asarray(value, variable.dtype.as_numpy_dtype))

    def restore(
        self, state: Mapping[str, Array], prefix: str = _WEIGHTS, *, lacking: Collection[str] = ()
    ) -> None:
        """Take over the weights of `state`.

        Args:
            state: arrays by name, more than these, too.
            prefix: of their names there.
            lacking: columns that the model of the state does not have, the last of their kind.

        Raises:
            KeyError: a weight is missing.
            InputError: they are not those of this model.
        """
        from cowclip_merlin.models.more_columns import grown_weights

        names = [f"{prefix}{i}" for i in range(len(self.variables))]
        if lacking:
            more = more_of(self._features, lacking)
            weights = grown_weights(self._model, self.variables, more)
            variables = dict(zip(names, self.variables))
            state = grown_variables(state, variables, dict(zip(names, weights)))
        self.set_weights([state[name] for name in names])

    def state(self) -> dict[str, Array]:
        """Return what `restore` needs, by name."""
        return {f"{_WEIGHTS}{i}": v.numpy() for i, v in enumerate(self.variables)}

    def score(self, rows: list[Array], numbers: Array, lengths: Array | None = None) -> Array:
        """Return click probabilities, float32 [b]; with several targets their predictions, [b, T].

        Args:
            rows: embedding rows of each table, float32 [b, F, d]; with multi-valued columns
                [m, d], one for each id.
            numbers: continuous columns and vectors, float32 [b, C].
            lengths: with multi-valued columns, number of ids in each column, int32 [b, F].
        """
        tf = compat.tensorflow()
        more = [] if lengths is None else [tf.constant(lengths)]
        return self._score([tf.constant(x) for x in rows], tf.constant(numbers), *more).numpy()


class MessagesMissing(InputError):
    """A message came before those that precede it."""


class ServedModel:
    """Rows and dense weights of a model, and how far it has followed the log.

    One thread may call `apply` while any number of threads call `predict`. No rows are read while
    one message changes them. So a prediction reads each row whole, and never the row of another
    id. Rows of one prediction may be from different syncs. Dense weights change together, while
    nothing is scored.

    Args:
        features: columns of a request.
        table: the rows.
        scorer: the dense part.
        version: of the rows and weights that these have now.
    """

    def __init__(
        self, features: LogFeatures, table: ServingTable, scorer: DenseScorer, version: Version
    ) -> None:
        self.features, self.version = features, version
        self.generation, self.seq = version.generation, version.seq  # of the last message
        self._table, self._scorer = table, scorer
        self._rows_lock, self._weights_lock = SharedLock(), SharedLock()

    @classmethod
    def from_snapshot(
        cls,
        run: str | FilePath,
        number: int,
        version: Version,
        columns: Sequence[str] | None = None,
    ) -> ServedModel:
        """Load the model of a run's snapshot, without moments and counters.

        Args:
            run: folder of the run, or the address of its copies.
            number: of the snapshot.
            version: that the snapshot has.
            columns: which the model reads; None: all of the run.

        Raises:
            InputError: the run or the snapshot is missing or damaged.
        """
        settings, features = load_online_config(run)
        if columns is not None:  # the trainer may already have written what comes next
            features = features.only(columns)
        folder = path_of(run) / "snapshots"
        snapshot = load_part(folder, number, GrowingParts(_TABLE), wanted=_is_served)
        lacking, arrays = lacking_in(snapshot.extra, features), snapshot.arrays
        scorer = DenseScorer(settings.run, features)
        try:
            scorer.restore(arrays, _DENSE, lacking=lacking)
            state = part_of(arrays, _TABLE)
            if lacking:
                state = with_more_fields(state, len(features.tables), features.table_of_column)
            table = _table_of(settings, features, state)
        except KeyError as error:
            raise InputError(
                f"{run}: snapshot {number} has no {error}; is it of a trainer?"
            ) from None
        model = cls(features, table, scorer, version)
        model.warm_up()
        return model

    def __len__(self) -> int:
        """Number of ids that have a row."""
        return len(self._table)

    def state(self) -> dict[str, Array]:
        """Return what `restore` needs, by name; most are views."""
        return self._table.state() | self._scorer.state()

    def restore(self, state: Mapping[str, Array]) -> None:
        """Take over the rows and weights of a state; this model must be new."""
        self._table.restore(state)
        self._scorer.restore(state)

    @property
    def row_bytes(self) -> int:
        """Memory of the rows, of their ids and of the index."""
        return self._table.used_bytes

    def warm_up(self) -> None:
        """Score one event, so that the first request does not wait for compilers."""
        from cowclip_merlin.online.events.events import Events

        columns = self.features.num_numbers
        ids = Ids(np.zeros((1, self._table.num_columns), np.int64))
        ids = ids.multi_valued() if self.features.lists else ids
        self.predict(Events(ids=ids, numbers=np.zeros((1, columns), np.float32)))

    def predict(self, events: Events) -> Prediction:
        """Return click probabilities of events and the version of the model."""
        with self._rows_lock.reading():
            version, rows = self.version, self._table.look_up(events.ids)
            values = [table[rows.values] for table in self._table.tables]
        with self._weights_lock.reading():
            probabilities = self._scorer.score(values, events.numbers, rows.lengths)
        absent = np.count_nonzero(rows.values < self._table.num_fields)
        return Prediction(probabilities, version, int(absent))

    def apply(self, message: SyncMessage) -> bool:
        """Take over the next message of this model's generation; False if it was before.

        Raises:
            MessagesMissing: messages between the last one and this one are missing.
            InputError: the message is of another model; nothing has changed.
        """
        if message.seq <= self.seq:
            return False
        if message.seq > self.seq + 1:
            raise MessagesMissing(
                f"message {message.seq} of generation {message.generation} came after {self.seq}"
            )
        check_message(message, self._table)
        if message.kind in (GONE, ROWS):
            changes, values = changes_of(message)
            # Readers may go on while the index doubles: it is replaced, and they do not write.
            self._table.reserve(len(changes.ids))
            with self._rows_lock.writing():
                self._table.apply(changes, values)
        elif message.kind == DENSE:
            weights = [message.arrays[f"dense{i}"] for i in range(len(message.arrays))]
            with self._weights_lock.writing():
                self._scorer.set_weights(weights)
        self.seq = message.seq
        if message.kind == SYNCED:
            self.version = Version(message.generation, message.seq, dict(message.info))
        return True


def _is_served(name: str) -> bool:
    """Whether a server needs an array of a snapshot."""
    short = name.removeprefix(_TABLE)
    table = short in ("ids", "fields", "free", "numbers") or (
        short.startswith("table") and short[-2:] == ".w"
    )
    return table if name.startswith(_TABLE) else name.startswith(_DENSE)


def _table_of(
    settings: OnlineSettings, features: LogFeatures, arrays: Mapping[str, Array]
) -> ServingTable:
    """The rows of a snapshot."""
    state = {k.removesuffix(".w"): x for k, x in arrays.items()}
    fields, tables = len(features.tables), sum(k.startswith("table") for k in state)
    table = ServingTable(
        fields,
        settings.reserved_rows(fields),
        [state[f"table{i}"].shape[1] for i in range(tables)],
        index_cells=cells_for(settings.max_rows) if settings.max_rows else 16,
        field_of_column=features.table_of_column,
    )
    table.restore(state)
    if settings.absent == "zeros":  # the trainer reads zeros there, too
        for rows in table.tables:
            rows[:fields] = 0
    return table
