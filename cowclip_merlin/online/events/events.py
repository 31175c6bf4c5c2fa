"""Events as a model reads them, made from columns: the same for a log and a request.

Whatever an event comes from, what a value is depends on its text alone: that of `text_of_value` for
a request, that of Arrow for parquet. Columns of numbers, which `column_of` makes, have the same ids
and numbers without the way over text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cowclip_merlin.batch import Ids
from cowclip_merlin.online.events.features import ContinuousColumn, LogFeatures
from cowclip_merlin.online.events.ids import encode_ids, text_ids
from cowclip_merlin.online.events.times import parse_formatted_times, parse_times
from cowclip_merlin.tables.layout import LATEST
from cowclip_merlin.types import Array, ArrowColumn, Json
from cowclip_merlin.workflows.raw.values import labels
from cowclip_merlin.workflows.raw.values.text_to_number import numbers_of_texts

if TYPE_CHECKING:
    import pyarrow as pa

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Events:
    """Events in the order of the log or the request.

    Attributes:
        ids: of the categorical columns, int64.
        numbers: of the continuous columns and then of the vectors, float32 [n, C].
        labels: int8 [n]; None in a request. With several targets float32 [n, T], in which a missing
            label is NaN.
        times: whole seconds since 1970, int64 [n]; None in a request.
        keys: 64-bit ids of the key column, int64 [n]; None without one, and in a request.
        offsets: log of the rate with which negatives were sampled, float32 [n]; None if all events
            have the rate 1. A model is trained on `sigmoid(z - offset)`.
        weights: of the events in the loss and the metrics, float32 [n]; None without such a column,
            and in a request.
        worker: rank of the worker that has decoded the event, and alone has its ids and numbers,
            int16 [n]; None: they are all here.
    """

    ids: Ids
    numbers: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int8] | npt.NDArray[np.float32] | None = None
    times: npt.NDArray[np.int64] | None = None
    keys: npt.NDArray[np.int64] | None = None
    offsets: npt.NDArray[np.float32] | None = None
    weights: npt.NDArray[np.float32] | None = None
    worker: npt.NDArray[np.int16] | None = None

    def __len__(self) -> int:
        """Number of events."""
        return self.ids.num_rows

    @property
    def known_first_labels(self) -> Array:
        """The labels of the first target that are not missing."""
        first = self.labels.reshape(len(self), -1)[:, 0]
        return first[~np.isnan(first)]

    def filter(self, which: Mask | slice) -> Events:
        """The events where the mask is true, or those of a slice."""
        columns = {k: None if x is None else x[which] for k, x in self._columns().items()}
        return Events(ids=self.ids.take(which), **columns)

    def _columns(self) -> dict[str, Array | None]:
        """All columns but the ids."""
        return {name: column for name, column in vars(self).items() if name != "ids"}

    def with_offsets(self) -> Events:
        """The same events; offsets of None become zeros."""
        zeros = np.zeros(len(self), np.float32)
        return self if self.offsets is not None else replace(self, offsets=zeros)

    @classmethod
    def concatenate(cls, parts: Sequence[Events]) -> Events:
        """Events of all parts in their order; all must have the same attributes but `offsets`."""
        if any(part.offsets is not None for part in parts):
            parts = [part.with_offsets() for part in parts]
        columns = {k: [vars(part)[k] for part in parts] for k in parts[0]._columns()}
        whole = {k: None if x[0] is None else np.concatenate(x) for k, x in columns.items()}
        return cls(ids=Ids.concatenate([part.ids for part in parts]), **whole)


class Damage:
    """What is wrong with each damaged row: the first reason found.

    Attributes:
        rows: column -> value, of each row; not needed if all columns are text.
        reasons: position of a row -> reason.
    """

    def __init__(self, rows: Sequence[Mapping[str, Json]] = ()) -> None:
        self.rows = rows
        self.reasons: dict[int, str] = {}

    def add(self, wrong: Mask, reason: Callable[[int], str]) -> None:
        """Note the rows where the mask is true."""
        for i in np.flatnonzero(wrong).tolist():
            if i not in self.reasons:
                self.reasons[i] = reason(i)

    def text(self, column: ArrowColumn, i: int, name: str) -> str | None:
        """Return the text of a value that is wrong; None if it is missing."""
        value = column[i].as_py()
        return value if value is None or type(value) is str else str(self.rows[i][name])

    def good(self, rows: int) -> Mask:
        """The rows of so many that nothing is wrong with."""
        mask = np.ones(rows, bool)
        mask[list(self.reasons)] = False
        return mask


def encode_inputs(table: pa.Table, features: LogFeatures, damage: Damage) -> Events:
    """Ids and numbers of all rows, those of damaged ones without meaning.

    Args:
        table: Arrow table of text, or as of `column_of`; null is a missing value. Columns with
            several values per row are lists of text, without nulls. Vectors are lists of float32
            numbers, of their length.
        features: the columns.
        damage: takes what is wrong.
    """
    rows = table.num_rows
    numbers = [_scaled(_array(table[c.name]), c, damage)[:, None] for c in features.continuous]
    for name, length in features.lengths.items():
        numbers.append(np.asarray(_array(table[name]).flatten()).reshape(rows, length))
    return Events(
        ids=encode_ids(table, features.categorical),
        numbers=np.concatenate([np.empty((rows, 0), np.float32), *numbers], axis=1),
    )


def encode_log(table: pa.Table, features: LogFeatures, damage: Damage) -> Events:
    """As `encode_inputs`, with labels, times, keys and weights.

    Args:
        table: as for `encode_inputs`, and the label as int8; several labels as numbers with nulls.
        features: the columns.
        damage: takes what is wrong.
    """
    inputs = encode_inputs(table, features, damage)
    times = encode_times(_array(table[features.time]), features, damage)
    keys = None
    if features.key:
        keys = text_ids(table[features.key], keep_text=features.key_keeps_text)
        missing = np.asarray(table[features.key].is_null())
        damage.add(missing, lambda _: f"{features.key} is missing; an event needs its key")
    return Events(
        ids=inputs.ids,
        numbers=inputs.numbers,
        labels=labels_of(table, features),
        times=times,
        keys=keys,
        weights=_weights(table, features, damage),
    )


def labels_of(
    table: pa.Table, features: LogFeatures
) -> npt.NDArray[np.int8] | npt.NDArray[np.float32]:
    """Return the labels of all rows, int8 [n], or float32 [n, T] with NaN where one is missing."""
    if not features.more_labels:
        return np.asarray(table[features.label]).astype(np.int8)
    columns = [table[name].cast("float64").fill_null(np.nan) for name in features.labels]
    return np.stack([np.asarray(column) for column in columns], axis=1).astype(np.float32)


def _weights(
    table: pa.Table, features: LogFeatures, damage: Damage
) -> npt.NDArray[np.float32] | None:
    """Weights of all events, 0 where one is missing or wrong; None without such a column."""
    if not (name := features.weight):
        return None
    column = _array(table[name])
    numbers = _floats(column)
    good = np.asarray(labels.are_weights(numbers))
    damage.add(~good, lambda i: labels.weight_damage(name, damage.text(column, i, name)))
    values = numbers.fill_null(0).to_numpy(zero_copy_only=False)
    return np.where(good, values, 0).astype(np.float32)


def _array(column: ArrowColumn) -> pa.Array:
    """A column of a table as one Arrow array."""
    import pyarrow as pa

    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _scaled(
    values: ArrowColumn, column: ContinuousColumn, damage: Damage
) -> npt.NDArray[np.float32]:
    """Numbers of a column as the model takes them."""
    name = column.name
    numbers = column.scaling.apply(_numbers(values, name, damage))
    damage.add(
        ~np.isfinite(numbers),
        lambda i: f"{name} is {damage.text(values, i, name)!r:.60}, too large for a 32-bit number",
    )
    return numbers


def _numbers(column: ArrowColumn, name: str, damage: Damage) -> npt.NDArray[np.float64]:
    """Numbers of a column, 0 where a value is missing or wrong."""
    import pyarrow.compute as pc

    def given(i: int) -> str:
        return f"{name} is {damage.text(column, i, name)!r:.60}"

    numbers = _floats(column)
    wrong = np.asarray(pc.and_(pc.is_null(numbers), pc.is_valid(column)))
    damage.add(wrong, lambda i: f"{given(i)}, not a number")
    values = numbers.fill_null(0).to_numpy(zero_copy_only=False)
    infinite = ~np.isfinite(values)
    damage.add(infinite, lambda i: f"{given(i)}, not a finite number")
    return np.where(infinite, 0, values)


def _floats(column: ArrowColumn) -> pa.Array:
    """Numbers of a column of text or numbers, float64; null where a value is missing or wrong."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_int64(column.type) or pa.types.is_float64(column.type):
        return pc.cast(column, pa.float64(), safe=False)  # rounds as Arrow does with a text
    return numbers_of_texts(column)


def encode_times(
    column: ArrowColumn, features: LogFeatures, damage: Damage
) -> npt.NDArray[np.int64]:
    """Whole seconds since 1970, int64 [n]; 0 where a time is missing or wrong.

    Args:
        column: Arrow array of text, or as of `column_of`; null is a missing value.
        features: format of the time column.
        damage: takes what is wrong.
    """
    name, time_format = features.time, features.time_format
    damage.add(np.asarray(column.is_null()), lambda _: f"{name} is missing")
    if time_format:
        seconds = parse_formatted_times(column, time_format)
        form = f"not a time like {time_format}"
    else:
        seconds = parse_times(column)
        form = "neither seconds since 1970 nor a date like 2001-01-31 23:59:00"

    def given(i: int) -> str:
        return f"{name} is {damage.text(column, i, name)!r:.60}"

    damage.add(np.isnan(seconds), lambda i: f"{given(i)}, {form}")
    damage.add(seconds < 0, lambda i: f"{given(i)}, before 1970")
    damage.add(
        seconds > LATEST,
        lambda i: f"{given(i)}, after 2106; give seconds, not milliseconds",
    )
    usable = (seconds >= 0) & (seconds <= LATEST)
    return np.where(usable, seconds, 0).astype(np.int64)
