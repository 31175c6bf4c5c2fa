"""Times of events, seconds since 1970 or dates, and durations as people write them."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cowclip_merlin.errors import InputError
from cowclip_merlin.tables.layout import LATEST
from cowclip_merlin.types import ArrowColumn
from cowclip_merlin.workflows.raw.values.text_to_number import FINITE, numbers_of_texts

if TYPE_CHECKING:
    import pyarrow as pa


SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86_400}


def parse_duration(value: object, name: str) -> int:
    """Seconds of a duration.

    Args:
        value: whole seconds, or text such as "45s", "30min", "5h" or "1d".
        name: what it is, for the message.

    Raises:
        InputError: it is something else, or not above 0.

    >>> parse_duration("30min", "ttl"), parse_duration("1d", "ttl"), parse_duration(90, "ttl")
    (1800, 86400, 90)
    """
    found = re.fullmatch(r"(\d{1,18})\s*(s|min|h|d)?", str(value), re.ASCII)
    seconds = int(found[1]) * SECONDS[found[2] or "s"] if found else 0
    if isinstance(value, bool) or not 0 < seconds <= LATEST:
        raise InputError(
            f"{name} is {value!r:.40}; give whole seconds, or a time like 30min, 5h or 1d"
        )
    return seconds


_NUMBER = f"^{FINITE}$"
_CLOCK = r"([01][0-9]|2[0-3])(:[0-5][0-9](:[0-5][0-9](\.[0-9]{1,9})?)?)?"
_ZONE = r"(Z|[+-]([01][0-9]|2[0-3])(:?[0-5][0-9])?)"
# Arrow's nanoseconds reach from 1677 to 2262, and silently begin anew beyond.
_DAY = r"(1[7-9]|2[01])[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_DATE = f"^{_DAY}([T ]{_CLOCK})?$"
_DATE_IN_ZONE = f"^{_DAY}[T ]{_CLOCK}{_ZONE}$"


def parse_times(column: ArrowColumn) -> npt.NDArray[np.float64]:
    """Seconds since 1970, rounded down to whole ones; NaN for a text that is not a time.

    A number is seconds; any other text is an ISO 8601 date of the years 1700 to 2199, in UTC if it
    names no zone.

    Args:
        column: Arrow array of text or of numbers.

    >>> import pyarrow as pa
    >>> parse_times(pa.array(["90.5", "1970-01-02", "1970-01-01T01:00:00+01:00", "?"])).tolist()
    [90.0, 86400.0, 0.0, nan]
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_int64(column.type) or pa.types.is_float64(column.type):
        numbers = pc.cast(column, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return np.where(np.isfinite(numbers), np.floor(numbers), np.nan)
    text = pc.utf8_trim(column, " ").fill_null("")
    seconds = np.full(len(text), np.nan)
    # Arrow reads dates with a zone and without one by two types.
    for pattern, read in (
        (_NUMBER, lambda texts: np.floor(numbers_of_texts(texts).to_numpy(zero_copy_only=False))),
        (_DATE_IN_ZONE, lambda dates: _seconds_of_dates(dates, pa.timestamp("ns", tz="UTC"))),
        (_DATE, lambda dates: _seconds_of_dates(dates, pa.timestamp("ns"))),
    ):
        mask = pc.match_substring_regex(text, pattern)
        if pc.any(mask).as_py():
            seconds[np.asarray(mask)] = read(text.filter(mask))
    return seconds


def _seconds_of_dates(dates: pa.Array, kind: pa.DataType) -> npt.NDArray[np.float64]:
    """Whole seconds of dates in the form that Arrow reads; NaN for a day that its month lacks."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        times = dates.cast(kind)
    except pa.ArrowInvalid:
        times = pc.if_else(pa.array(_are_days(dates)), dates, None).cast(kind)
    whole = times.cast(pa.int64()).fill_null(0).to_numpy() // 1_000_000_000
    return np.where(np.asarray(times.is_valid()), whole, np.nan)


def _are_days(dates: pa.Array) -> npt.NDArray[np.bool_]:
    """Whether the months of dates have these days."""
    import pyarrow as pa
    import pyarrow.compute as pc

    year, month, day = (
        np.asarray(pc.utf8_slice_codeunits(dates, start, stop).cast(pa.int64()))
        for start, stop in ((0, 4), (5, 7), (8, 10))
    )
    first = (12 * (year - 1970) + month - 1).astype("datetime64[M]")
    last = (first + 1).astype("datetime64[D]") - 1
    return day <= (last - first.astype("datetime64[D]")).astype(np.int64) + 1


def parse_formatted_times(column: ArrowColumn, time_format: str) -> npt.NDArray[np.float64]:
    """Seconds since 1970, rounded down; NaN for a text that is not in this format.

    Args:
        column: Arrow array of text.
        time_format: of `datetime.strptime`; UTC if it names no zone.

    >>> import pyarrow as pa
    >>> parse_formatted_times(pa.array(["70010201", "soon", None]), "%y%m%d%H").tolist()
    [90000.0, nan, nan]
    """
    encoded = column.dictionary_encode()  # such times are hours or days: few distinct ones
    texts = encoded.dictionary.to_pylist()
    seconds = np.array([*(_seconds(text, time_format) for text in texts), np.nan])
    return seconds[encoded.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)]


def _seconds(text: str, time_format: str) -> float:
    try:
        time = datetime.strptime(text.strip(" "), time_format)
    except ValueError:
        return np.nan
    return float(np.floor((time if time.tzinfo else time.replace(tzinfo=timezone.utc)).timestamp()))


def is_time_format(time_format: str) -> bool:
    """Whether `datetime.strptime` can read what is written in this format.

    >>> is_time_format("%y%m%d%H"), is_time_format("hour"), is_time_format("%Q")
    (True, False, False)
    """
    day = datetime(2001, 2, 3, 4, 5, 6, tzinfo=timezone.utc)
    try:
        return datetime.strptime(day.strftime(time_format), time_format).date() == day.date()
    except ValueError:
        return False


def format_time(seconds: int) -> str:
    """A time for messages.

    >>> format_time(0)
    '1970-01-01 00:00:00 UTC'
    """
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
