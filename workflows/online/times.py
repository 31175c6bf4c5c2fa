"""Times of events: seconds since 1970, or dates."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import numpy as np
import numpy.typing as npt

LATEST = 2**32 - 1
"""Last time that can be: 2106-02-07, since tables keep 32 bits of it."""


def cast_each(column: Any, kind: Any) -> Any:
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


def parse_times(column: Any) -> npt.NDArray[np.float64]:
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

    text = pc.utf8_trim(column, " ")
    numbers = cast_each(text, pa.float64())
    seconds = np.floor(numbers.to_numpy(zero_copy_only=False).astype(np.float64))
    # Arrow reads dates with a zone and without one by two types.
    for kind in (pa.timestamp("ns"), pa.timestamp("ns", tz="UTC")):
        unknown = np.asarray(numbers.is_null()) & np.isnan(seconds)
        if not unknown.any():
            break
        dates = cast_each(text.filter(pa.array(unknown)), kind)
        known = np.asarray(dates.is_valid())
        found = dates.cast(pa.int64()).fill_null(0).to_numpy() // 1_000_000_000
        seconds[unknown] = np.where(known, found, seconds[unknown])
    return seconds


def format_time(seconds: int) -> str:
    """A time for messages.

    >>> format_time(0)
    '1970-01-01 00:00:00 UTC'
    """
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
