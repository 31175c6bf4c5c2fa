"""Events as a model reads them, made from columns: the same for a log, a message and a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import NoneType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cowclip_merlin.batch import Ids
from cowclip_merlin.online.events.columns import ColumnIds, floats
from cowclip_merlin.online.events.features import SAMPLE_RATE, LogFeatures
from cowclip_merlin.online.events.values import (
    one_array,
    parse_formatted_times,
    parse_times,
    text_ids,
)
from cowclip_merlin.tables.layout import LATEST
from cowclip_merlin.types import Array, ArrowColumn, Json
from cowclip_merlin.workflows.raw.values.numbers import are_weights, weight_damage

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
    """

    ids: Ids
    numbers: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int8] | npt.NDArray[np.float32] | None = None
    times: npt.NDArray[np.int64] | None = None
    keys: npt.NDArray[np.int64] | None = None
    offsets: npt.NDArray[np.float32] | None = None
    weights: npt.NDArray[np.float32] | None = None

    def __len__(self) -> int:
        """Number of events."""
        return self.ids.num_rows

    @property
    def known_first_labels(self) -> Array:
        """The labels of the first target that are not missing."""
        first = self.labels.reshape(len(self), -1)[:, 0]
        return first[~np.isnan(first)]

    def filter(self, which: Mask | slice) -> Events:
        """The events where the mask is true, or those of a slice; of all, these themselves."""
        if not isinstance(which, slice) and which.dtype == np.bool_ and which.all():
            return self
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
        table: Arrow table of text, or as of `StreamColumn.of_rows`; null is a missing value.
            Columns with several values per row are lists of text, without nulls. Vectors are lists
            of float32 numbers, of their length.
        features: the columns.
        damage: takes what is wrong.
    """
    names = [column.name for column in features.categorical]
    owners = [names.index(column.table or column.name) for column in features.categorical]
    ids = [
        column.ids(table[column.name], field, features.categorical[field])
        for field, column in zip(owners, features.categorical)
    ]
    rows = table.num_rows
    numbers = [
        column.numbers(one_array(table[column.name]), damage)
        for column in (*features.continuous, *features.vectors)
    ]
    return Events(
        ids=_together(ids, rows),
        numbers=np.concatenate([np.empty((rows, 0), np.float32), *numbers], axis=1),
    )


def _together(columns: Sequence[ColumnIds], rows: int) -> Ids:
    """Return the ids of all columns; the form with lengths if a column has some."""
    if any(column.lengths is not None for column in columns):
        return Ids.of_columns(columns)
    found = [column.ids for column in columns]
    return Ids(np.stack(found, axis=1) if found else np.empty((rows, 0), np.int64))


def encode_log(table: pa.Table, features: LogFeatures, damage: Damage) -> Events:
    """As `encode_inputs`, with labels, times, keys and weights.

    Args:
        table: as for `encode_inputs`, and the label as int8; several labels as numbers with nulls.
        features: the columns.
        damage: takes what is wrong.
    """
    inputs = encode_inputs(table, features, damage)
    times = encode_times(one_array(table[features.time]), features, damage)
    keys = None
    if features.key:
        # "47.0" and "47" are two keys if the key is a column that keeps its text, too.
        keep_text = any(each.text for each in features.categorical if each.name == features.key)
        keys = text_ids(table[features.key], keep_text=keep_text)
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
    column = one_array(table[name])
    numbers = floats(column)
    good = np.asarray(are_weights(numbers))
    damage.add(~good, lambda i: weight_damage(name, damage.text(column, i, name)))
    values = numbers.fill_null(0).to_numpy(zero_copy_only=False)
    return np.where(good, values, 0).astype(np.float32)


def encode_times(
    column: ArrowColumn, features: LogFeatures, damage: Damage
) -> npt.NDArray[np.int64]:
    """Whole seconds since 1970, int64 [n]; 0 where a time is missing or wrong.

    Args:
        column: Arrow array of text, or as of `StreamColumn.of_rows`; null is a missing value.
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


def sample_rate_offsets(rates: Sequence[Json], damage: Damage) -> npt.NDArray[np.float32] | None:
    """Return log q of each event, float32 [n]; None if all negatives were kept.

    If negatives are kept with probability q and positives always, the odds of the kept events are
    the true odds divided by q. A model with the logit z of the true odds is therefore trained on
    `sigmoid(z - log q)`, and it serves `sigmoid(z)`. Positives need the correction, too.

    Args:
        rates: values of the column `SAMPLE_RATE`; None is 1.
        damage: takes what is wrong.

    >>> sample_rate_offsets([1, None, 0.5], Damage()).tolist()
    [0.0, 0.0, -0.6931471824645996]
    """
    if all(rate is None or rate == 1 for rate in rates):
        return None
    checked = _checked_rates(rates)
    damage.add(
        np.isnan(checked),
        lambda i: f"{SAMPLE_RATE} is {rates[i]!r:.60}; give a number above 0 and at most 1",
    )
    return np.log(np.nan_to_num(checked, nan=1.0)).astype(np.float32)


def _checked_rates(rates: Sequence[Json]) -> Array:
    """Rates as numbers, [n]; NaN where one is wrong."""
    if {*map(type, rates)} <= {float, NoneType}:  # as the joiner writes them
        found = np.array([1.0 if rate is None else rate for rate in rates])
        return np.where((found > 0) & (found <= 1), found, np.nan)
    return np.array([_rate(rate) for rate in rates])


def _rate(value: Json) -> float:
    """A rate as a number; NaN if it is not one."""
    if value is None:
        return 1.0
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and 0 < value <= 1 else np.nan
