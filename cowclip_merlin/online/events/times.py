"""Times of events: seconds since 1970, or dates."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cowclip_merlin.types import ArrowColumn

if TYPE_CHECKING:
    import pyarrow as pa

_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_ZONE = r"[T ][0-9][0-9].*(Z|[+-][0-9][0-9](:?[0-9][0-9])?)$"


def cast_each(column: ArrowColumn, kind: pa.DataType) -> pa.Array:
    """The column as another Arrow type; null where a value cannot be cast.

    >>> import pyarrow as pa
    >>> cast_each(pa.array(["1.5", "a", None]), pa.float64()).to_pylist()
    [1.5, None, None]
    """
    import pyarrow as pa

    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        if len(column) == 1:
            return pa.nulls(1, kind)
    middle = len(column) // 2
    halves = (column.slice(0, middle), column.slice(middle))
    return pa.concat_arrays([cast_each(half, kind) for half in halves])


def parse_times(column: ArrowColumn) -> npt.NDArray[np.float64]:
    """Seconds since 1970, rounded down to whole ones; NaN for a text that is not a time.

    A number is seconds; any other text is an ISO 8601 date, in UTC if it names no zone.

    Args:
        column: Arrow array of text.

    >>> import pyarrow as pa
    >>> parse_times(pa.array(["90.5", "1970-01-02", "1970-01-01T01:00:00+01:00", "?"])).tolist()
    [90.0, 86400.0, 0.0, nan]
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    text = pc.utf8_trim(column, " ").fill_null("")
    seconds = np.full(len(text), np.nan)
    is_number = np.asarray(pc.match_substring_regex(text, _NUMBER))
    has_zone = np.asarray(pc.match_substring_regex(text, _ZONE)) & ~is_number
    # Arrow reads dates with a zone and without one by two types.
    for mask, kind in (
        (is_number, pa.float64()),
        (has_zone, pa.timestamp("ns", tz="UTC")),
        (~is_number & ~has_zone, pa.timestamp("ns")),
    ):
        if mask.any():
            values = cast_each(text.filter(pa.array(mask)), kind)
            seconds[mask] = _whole_seconds(values)
    return seconds


def _whole_seconds(values: pa.Array) -> npt.NDArray[np.float64]:
    """Of an Arrow array of numbers or timestamps; null becomes NaN."""
    import pyarrow as pa

    if pa.types.is_floating(values.type):
        return np.floor(values.to_numpy(zero_copy_only=False))
    whole = values.cast(pa.int64()).fill_null(0).to_numpy() // 1_000_000_000
    return np.where(np.asarray(values.is_valid()), whole, np.nan)


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
