"""Columns that others are made of: times and buckets; what is made in rows that a program sends.

A time is read to the second: text as of ISO 8601, Arrow's types, or a number. One without a zone is
taken as it is written; one with a zone, as UTC. A number counts seconds since 1970-01-01 00:00 UTC.
Those before 1973 and after 2033 are refused: they are more likely 20010131, 2001013114 or
milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, timezone

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cowclip_merlin.errors import InputError
from cowclip_merlin.types import ArrowColumn, Json, JsonObject
from cowclip_merlin.workflows.raw.columns import Bools, Column, Ids, Number
from cowclip_merlin.workflows.raw.log_format import DAY_HOUR_PARTS, LogFormat, time_parts
from cowclip_merlin.workflows.raw.values.numbers import (
    is_missing,
    log_buckets,
    number_of_text,
)
from cowclip_merlin.workflows.raw.values.value_text import Damage, text_of_values

GIVEN = "2001-01-31, 2001-01-31 14:05:09, or seconds since 1970"
"""What a time may be, for messages."""
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_FIRST, _END = 10**8, 2 * 10**9
_CLOCK = r"[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?"
_TEXT = re.compile(rf"([0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}})({_CLOCK}(Z|[+-][0-9]{{2}}:?[0-9]{{2}})?)?")
_DAY_HOUR = re.compile("[0-9]{8}")
_PLAIN = rf"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}(?:{_CLOCK})?$"


def time_of_text(text: str) -> int | None:
    """Return the seconds since 1970 that a text means; None if it is no date or time.

    >>> time_of_text("1970-01-02"), time_of_text("1970-01-01 01:00:00.5+01:00")
    (86400, 0)
    >>> time_of_text("1700000000"), time_of_text("1700000000000"), time_of_text("20010131")
    (1700000000, None, None)
    >>> time_of_text("01/02/1970"), time_of_text("1970-02-30")
    (None, None)
    """
    found = _TEXT.fullmatch(text)
    if not found:
        number = number_of_text(text)
        return int(number) if _FIRST <= number < _END else None
    day, clock, zone = (part or "" for part in found.groups())
    plain = day + clock.removesuffix(zone).partition(".")[0]
    zone = "+0000" if zone in ("", "Z") else zone.replace(":", "")
    with suppress(ValueError):  # such as 2001-02-30
        at = datetime.fromisoformat(plain).replace(tzinfo=timezone.utc)
        return int(at.timestamp()) - int(zone[0] + "1") * 60 * (60 * int(zone[1:3]) + int(zone[3:]))
    return None


def day_hour_of_text(text: str) -> int | None:
    """Return the seconds since 1970 of an hour such as 14102122; None if it is no such text.

    >>> day_hour_of_text("70010201"), day_hour_of_text("14102124"), day_hour_of_text("2014102100")
    (90000, None, None)
    """
    with suppress(ValueError):  # such as the hour 24
        if _DAY_HOUR.fullmatch(text):
            at = datetime.strptime(text, "%y%m%d%H").replace(tzinfo=timezone.utc)
            return int(at.timestamp())
    return None


def times_of_values(values: ArrowColumn, where: str) -> tuple[ArrowColumn, npt.NDArray[np.bool_]]:
    """Return the times of a column, timestamp[s], and which are right or missing, bool [n].

    Args:
        values: text, numbers, dates or timestamps, [n]; a missing one is null.
        where: the file and the column, for messages.

    Raises:
        InputError: if a column of this type has no times.

    >>> import pyarrow as pa
    >>> times, right = times_of_values(pa.array(["2001-01-31 14:05", "soon", None]), "date")
    >>> [str(time) for time in times], right.tolist()
    (['2001-01-31 14:05:00', 'None', 'None'], [True, False, True])
    """
    values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    kind, good = values.type, np.ones(len(values), bool)
    if pa.types.is_dictionary(kind):
        return times_of_values(values.cast(kind.value_type), where)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind):
        return times_of_texts(values.cast(pa.string()))
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        given = values.cast(pa.float64(), safe=False)
        right = pc.and_(pc.greater_equal(given, _FIRST), pc.less(given, _END))
        seconds = pc.if_else(right, pc.floor(given), None).cast(pa.int64())
        return seconds.cast(pa.timestamp("s")), np.asarray(pc.fill_null(right, True), bool)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        values = values.cast(pa.timestamp(kind.unit))  # UTC
    elif not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        raise InputError(f"{where} is {kind}, no dates or times; give {GIVEN}")
    return values.cast(pa.timestamp("ms"), safe=False).cast(pa.timestamp("s"), safe=False), good


def times_of_texts(
    texts: ArrowColumn, read: Callable[[str], int | None] = time_of_text
) -> tuple[pa.TimestampArray, npt.NDArray[np.bool_]]:
    """Return the times of texts; Arrow reads plain ones if all are right, which is fast."""
    texts = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    coded = texts.dictionary_encode()
    known, times = coded.dictionary, None
    if pc.all(pc.match_substring_regex(known, _PLAIN)).as_py():
        with suppress(pa.ArrowInvalid):  # such as 2001-02-30
            short = pc.replace_substring_regex(known, r"\.[0-9]+$", "")
            times = short.cast(pa.timestamp("s"))
    if times is None:
        found = [read(text) for text in known.to_pylist()]
        times = pa.array(found, pa.int64()).cast(pa.timestamp("s"))
    right = pc.or_(times.is_valid(), pc.equal(known, ""))
    good = pc.fill_null(right.take(coded.indices), True)
    return times.take(coded.indices), np.asarray(good, bool)


def time_damage(name: str, value: object) -> str:
    """Describe a value that is no time; "" if it is one."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    known = is_number or isinstance(value, str)
    right = time_of_text(str(value)) is not None if known else isinstance(value, date)
    return "" if right else f"{name} is {value!r:.60}, no time; give {GIVEN}"


def hours_and_weekdays(times: ArrowColumn) -> tuple[ArrowColumn, ArrowColumn]:
    """Return the hour, "0" to "23", and the weekday of each time; null for a missing one.

    >>> import pyarrow as pa
    >>> times, _ = times_of_values(pa.array(["2001-01-31 14:05"]), "date")
    >>> [each.to_pylist() for each in hours_and_weekdays(times)]
    [['14'], ['wednesday']]
    """
    return pc.hour(times).cast(pa.string()), pa.array(WEEKDAYS).take(pc.day_of_week(times))


def weekends(times: ArrowColumn) -> ArrowColumn:
    """Return "1" for a time on Saturday or Sunday, else "0"; null for a missing one."""
    return pa.array([*"0000011"]).take(pc.day_of_week(times))


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
