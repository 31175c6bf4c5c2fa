"""What a value of a stream is: a 64-bit id, a time in seconds, a number as a model takes it.

A value's text alone decides its id, so a log and a request give equal ids without a vocabulary:

- a whole number from -(2^63 - 1) to 2^63 - 1 is its own id: "7" and 7 are 7; so is a whole float
  below 2^53, "7.0" and 7.0, unless the column keeps its text;
- any other text has the BLAKE2b hash (RFC 7693) of its UTF-8 bytes, 8 bytes long, read as a signed
  little-endian number: "4.5", "007", "+7" and numbers beyond that range are such texts;
- a missing value, which an empty text is, too, has the id `MISSING`, and no other value has it.

Among n distinct values of a field the chance that any two share an id is n^2 / 2^65 at most:
3e-8 for a million values, 3e-4 for 100 million.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cowclip_merlin.checks import is_finite
from cowclip_merlin.errors import InputError
from cowclip_merlin.tables.layout import LATEST
from cowclip_merlin.types import ArrowColumn, Json
from cowclip_merlin.workflows.raw.values.numbers import FINITE, numbers_of_texts
from cowclip_merlin.workflows.raw.values.value_text import whole_text, whole_texts

if TYPE_CHECKING:
    import pyarrow as pa

    from cowclip_merlin.workflows.prepared.folder import PreparedData

Floats = npt.NDArray[np.floating]

MISSING = -(2**63)
"""Id of a missing value."""

_FEW = 1024
"""Values that are faster one by one, as those of a request or of a batch are."""

_OF_WHOLE = frozenset("-0123456789")
"""How texts of whole numbers begin."""

_KNOWN, _SHORT = 1 << 16, 64
"""Ids that are remembered, of texts of so many characters: most of a batch come again."""

_SHORT_WHOLE = r"^(0|-?[1-9][0-9]{0,17})$"  # fits 64 bits for sure
_LONG_WHOLE = r"^-?[1-9][0-9]{18}$"  # may fit


def text_id(text: str) -> int:
    """Id of one value that is not missing.

    Raises:
        UnicodeEncodeError: the text holds half a surrogate pair, which UTF-8 cannot express.

    >>> text_id("42"), text_id("-1"), text_id("42.0"), text_id("042")
    (42, -1, 42, -3674937487732630020)
    """
    return _id_of_text(whole_text(text))


def _id_of_text(text: str) -> int:
    if text[:1] in _OF_WHOLE:
        digits = text.removeprefix("-")
        if digits.isascii() and digits.isdigit() and len(digits) <= 19 and _is_canonical(text):
            number = int(text)
            if -(2**63) < number < 2**63:
                return number
    return _hash(text.encode("utf-8"))


def _is_canonical(text: str) -> bool:
    """Whether these digits, maybe after a minus, are how the number is printed."""
    return str(int(text)) == text


def _hash(text: bytes) -> int:
    """Return the hash of a UTF-8 text."""
    digest = hashlib.blake2b(text, digest_size=8).digest()
    return max(int.from_bytes(digest, "little", signed=True), MISSING + 1)


def _hashes(texts: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """Return the hashes of UTF-8 texts, as `_hash` does."""
    digests = b"".join([hashlib.blake2b(text, digest_size=8).digest() for text in texts])
    return np.maximum(np.frombuffer(digests, "<i8"), MISSING + 1)


def text_ids(column: ArrowColumn, *, keep_text: bool = False) -> npt.NDArray[np.int64]:
    """Ids of a column of text, int64 [n]; null and empty text are missing.

    Args:
        column: Arrow array or chunked array of text, [n]; or of int64, all above `MISSING`.
        keep_text: "7.0" is text of its own, not 7.

    >>> import pyarrow as pa
    >>> text_ids(pa.array(["7", None, "7", ""])).tolist() == [7, MISSING, 7, MISSING]
    True
    """
    import pyarrow as pa

    if pa.types.is_int64(column.type):
        whole = column.fill_null(MISSING) if column.null_count else column
        return np.array(whole)  # one that may be written
    if len(column) <= _FEW:
        texts = column.to_pylist()
        id_of, known = (_id_of_text, _known_of_text) if keep_text else (text_id, _known)
        ids = {x: (known if len(x) <= _SHORT else id_of)(x) for x in {*texts} if x}
        return np.array([ids.get(text, MISSING) for text in texts], np.int64)
    encoded = one_array(column).dictionary_encode()
    # One more than there are values: null is the last.
    texts = encoded.dictionary if keep_text else whole_texts(encoded.dictionary)[0]
    ids = np.append(_distinct_ids(texts), MISSING)
    return ids[encoded.indices.fill_null(len(ids) - 1).to_numpy(zero_copy_only=False)]


def _distinct_ids(texts: pa.Array) -> npt.NDArray[np.int64]:
    import pyarrow as pa
    import pyarrow.compute as pc

    def where(form: str) -> npt.NDArray[np.bool_]:
        return np.asarray(pc.match_substring_regex(texts, form)).astype(bool)

    whole = where(_SHORT_WHOLE)
    ids = np.empty(len(texts), np.int64)
    ids[whole] = texts.filter(pa.array(whole)).cast(pa.int64()).to_numpy()
    ids[~whole] = _hashes(texts.filter(pa.array(~whole)).cast(pa.binary()).to_pylist())
    for i in np.flatnonzero(where(_LONG_WHOLE)).tolist():
        ids[i] = _id_of_text(texts[i].as_py())
    ids[np.asarray(pc.equal(texts, "")).astype(bool)] = MISSING
    return ids


_known = lru_cache(maxsize=_KNOWN)(text_id)
_known_of_text = lru_cache(maxsize=_KNOWN)(_id_of_text)


def one_array(column: ArrowColumn) -> pa.Array:
    """Return a column of a table as one Arrow array."""
    import pyarrow as pa

    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


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


def _signed_log(x: Floats) -> Floats:
    return np.sign(x) * np.log1p(np.abs(x))


def _log(x: Floats) -> Floats:
    # In single precision, as NVTabular's LogOp: numbers of a prepared folder come out the same.
    return np.log(np.maximum(x, 0).astype(np.float32) + 1)


def _unchanged(x: Floats) -> Floats:
    return x


TRANSFORMS: dict[str, Callable[[Floats], Floats]] = {
    "signed_log": _signed_log,
    "log": _log,
    "none": _unchanged,
}
"""signed_log: sign(x) log(1 + |x|); log: log(1 + x), negative values as 0, as in `prepare`."""


@dataclass(frozen=True, kw_only=True)
class NumberScaling:
    """How a continuous column is transformed: t(x), or (t(x) - lower) / (upper - lower).

    Attributes:
        transform: the name of t, one of `TRANSFORMS`.
        lower: t of the smallest usual value; None for no scaling.
        upper: t of the largest.
    """

    transform: str = "signed_log"
    lower: float | None = None
    upper: float | None = None

    @classmethod
    def from_range(cls, transform: str, minimum: float, maximum: float) -> NumberScaling:
        """The scaling that maps this range of raw values to [0, 1]; others go beyond.

        Raises:
            InputError: the range is empty.

        >>> scaling = NumberScaling.from_range("none", 10, 20)
        >>> scaling.apply(np.array([10.0, 15.0, 30.0])).tolist()
        [0.0, 0.5, 2.0]
        """
        ends = TRANSFORMS[transform](np.array([minimum, maximum], np.float64))
        lower, upper = (float(end) for end in ends)
        if not lower < upper:
            raise InputError(
                f"minimum is {minimum:g} and maximum {maximum:g}, which {transform!r} turns into "
                f"{lower:g} and {upper:g}; give a larger maximum"
            )
        return cls(transform=transform, lower=lower, upper=upper)

    @classmethod
    def from_prepared(cls, data: PreparedData, column: str) -> NumberScaling:
        """The scaling of a prepared folder: its logarithm, its minimum and maximum.

        Raises:
            InputError: the folder has no such continuous column.
        """
        if column not in data.continuous:
            raise InputError(f"{data.path}: no continuous column {column!r}; prepare it with that")
        return cls(
            transform="log" if data.recipe.log else "none",
            lower=data.statistics.minimum[column],
            upper=data.statistics.maximum[column],
        )

    def apply(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
        """The numbers that a model takes; infinity where one is too large for them.

        Args:
            values: raw values, [n]; 0 where one is missing.
        """
        with np.errstate(over="ignore"):
            return self._scale(TRANSFORMS[self.transform](values)).astype(np.float32)

    def _scale(self, x: Floats) -> Floats:
        if self.lower is None or self.upper is None:
            return x
        if self.lower == self.upper:  # one value in all rows that `prepare` fitted on
            return np.where(x == 0, 0, 0.5)  # as NVTabular's NormalizeMinMax
        return (x - self.lower) / (self.upper - self.lower)


def scaling_of(entry: Mapping[str, Json]) -> NumberScaling:
    """Return the scaling that a continuous column's entry in a features file asks for.

    Args:
        entry: key -> value; `transform`, `minimum` and `maximum` count.

    Raises:
        InputError: a setting is unknown or no number, or one of the ends is missing.

    >>> scaling_of({"transform": "none", "minimum": 0, "maximum": 9})
    NumberScaling(transform='none', lower=0.0, upper=9.0)
    """
    transform = entry.get("transform", "signed_log")
    if not isinstance(transform, str) or transform not in TRANSFORMS:
        raise InputError(f"transform is {transform!r}; choose one of {', '.join(TRANSFORMS)}")
    ends = [entry.get(key) for key in ("minimum", "maximum")]
    for key, end in zip(("minimum", "maximum"), ends):
        if (end is None and key in entry) or (end is not None and not _is_finite(end)):
            raise InputError(f"{key} is {end!r}; give a number")
    if ends == [None, None]:
        return NumberScaling(transform=transform)
    if None in ends:
        raise InputError("has one of minimum and maximum; give both or neither")
    return NumberScaling.from_range(transform, *ends)


def _is_finite(value: Json) -> bool:
    return type(value) in (int, float) and is_finite(value)
