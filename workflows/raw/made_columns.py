"""Columns that others are made of: their classes, and what is made in rows that a program sends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cowclip_merlin.types import ArrowColumn, Json, JsonObject
from cowclip_merlin.workflows.raw.columns import Bools, Column, Ids, Number, is_missing
from cowclip_merlin.workflows.raw.log_format import DAY_HOUR_PARTS, LogFormat, time_parts
from cowclip_merlin.workflows.raw.values.numbers import log_buckets
from cowclip_merlin.workflows.raw.values.times import (
    day_hour_of_text,
    hours_and_weekdays,
    time_damage,
    times_of_texts,
    times_of_values,
    weekends,
)
from cowclip_merlin.workflows.raw.values.value_text import Damage, text_of_values


@dataclass(frozen=True)
class Buckets(Ids):
    """A category of whole numbers, whose values are those of `log_buckets`."""

    any_text = False

    @property
    def _number(self) -> Number:
        return Number(self.name, whole=True)

    def cell_type(self, *, coded: bool) -> pa.DataType:
        return self._number.cell_type(coded=coded)

    @property
    def json_type(self) -> pa.DataType:
        return self._number.json_type

    def of_json(self, value: Json) -> Json:
        return self._number.of_json(value)

    def check(self, values: ArrowColumn, where: str) -> tuple[ArrowColumn, Bools | None]:
        found, right = self._number.check(values, where)
        return log_buckets(found), right

    def damage(self, value: object) -> str:
        return self._number.damage(value)

    @property
    def made_values(self) -> dict[str, str]:
        return {self.name: "of x above 2 floor(log(x)^2), else x; 0 for a missing one"}


@dataclass(frozen=True)
class Time(Column):
    """A date or time, of which `parts` makes id columns; it is not prepared itself."""

    def cell_type(self, *, coded: bool) -> pa.DataType:
        return pa.string()

    @property
    def json_type(self) -> pa.DataType:
        return pa.string()

    def of_json(self, value: Json) -> Json:
        return None if value is None or value == "" else str(value)

    def check(self, values: ArrowColumn, where: str) -> tuple[ArrowColumn, Bools]:
        return times_of_values(values, where)

    def damage(self, value: object) -> str:
        return "" if is_missing(value) else time_damage(self.name, value)

    @property
    def made(self) -> tuple[str, ...]:
        """Names of the columns of `parts`."""
        return time_parts(self.name)

    def parts(self, values: ArrowColumn) -> dict[str, ArrowColumn]:
        return dict(zip(self.made, hours_and_weekdays(values), strict=True))

    @property
    def made_values(self) -> dict[str, str]:
        what = ("hour", "0 to 23"), ("weekday", "monday to sunday"), ("weekend", "1 or 0")
        return {made: f"{x} of {self.name}, {values}" for made, (x, values) in zip(self.made, what)}


@dataclass(frozen=True)
class DayHour(Time):
    """An hour such as 14102122, of which `parts` makes id columns, too."""

    made = DAY_HOUR_PARTS

    def check(self, values: ArrowColumn, where: str) -> tuple[ArrowColumn, Bools]:
        return times_of_texts(text_of_values(values, where=where), day_hour_of_text)

    def damage(self, value: object) -> str:
        if is_missing(value) or day_hour_of_text(str(value)) is not None:
            return ""
        return f"{self.name} is {value!r:.60}, no hour; give one such as 14102122"

    def parts(self, values: ArrowColumn) -> dict[str, ArrowColumn]:
        columns = (*hours_and_weekdays(values), weekends(values))
        return dict(zip(self.made, columns, strict=True))


def with_made_columns(
    rows: Sequence[JsonObject], layout: LogFormat
) -> tuple[Sequence[JsonObject], dict[int, str]]:
    """Return events with the columns that `prepare` makes of others, as of a date its hour.

    Args:
        rows: events: column of the log -> value.
        layout: the columns of the log.

    Returns:
        The events, and what is wrong with some: number of the event -> reason.
    """
    columns = [each for each in layout.sources if isinstance(each, Time | Buckets)]
    if not columns:
        return rows, {}
    found, wrong = [dict(row) for row in rows], {}
    for column in columns:
        values = []
        for i, row in enumerate(rows):
            if column.name not in row:
                wrong.setdefault(i, f"no {column.name!r}; give null for a missing value")
            try:
                values.append(column.of_json(row.get(column.name)))
            except Damage as error:
                wrong.setdefault(i, str(error))
                values.append(None)
        given = pa.chunked_array([pa.array(values, column.json_type)])
        checked, right = column.check(given, f"column {column.name!r}")
        for i in [] if right is None else np.flatnonzero(~right).tolist():
            wrong.setdefault(i, column.damage(rows[i].get(column.name)))
        for name, made in (column.parts(checked) or {column.name: checked}).items():
            for row, value in zip(found, made.to_pylist(), strict=True):
                row[name] = value
    return found, wrong


def made_values(layout: LogFormat) -> dict[str, str]:
    """Return which values the columns have that `prepare` makes of others, in words.

    >>> time = {"time": "at", "categorical": ("user", "at_hour", "at_weekday")}
    >>> made_values(LogFormat(kind="table", label="y", **time))
    {'at_hour': 'hour of at, 0 to 23', 'at_weekday': 'weekday of at, monday to sunday'}
    """
    return {name: words for each in layout.sources for name, words in each.made_values.items()}
