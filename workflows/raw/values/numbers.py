"""Numbers of a raw log, given as text or as numbers; and those that are labels or weights.

A label is 0, 1, true, false, yes or no. With several targets, it may be missing if the row has
another, and that of a regression is any finite number of a float32. A weight is a finite number of
0 or more that a float32 can hold.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cowclip_merlin.errors import InputError
from cowclip_merlin.targets import Target
from cowclip_merlin.types import ArrowColumn

if TYPE_CHECKING:
    import pyarrow as pa

FINITE = r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?"
"""Regular expression of a number in text, without infinity and NaN."""

_ANY = rf"({FINITE}|[+-]?((?i:inf(inity)?|nan)|(?i:nan)\([0-9A-Za-z_]*\)))"
_WHOLE = re.compile(_ANY, re.ASCII)
_PLAIN = r"^-?[0-9]{1,18}$"  # surely a whole number of 64 bits; Arrow knows a few more


def numbers_of_texts(column: ArrowColumn) -> pa.Array:
    """Return a column of text as float64 numbers; null where a text is no number.

    >>> import pyarrow as pa
    >>> numbers_of_texts(pa.array(["1.5", " +2 ", "1e999", "a", "", None])).to_pylist()
    [1.5, 2.0, inf, None, None, None]
    """
    import pyarrow as pa

    return read_numbers(column, pa.float64(), around=" ")[0]


def read_numbers(
    texts: ArrowColumn, kind: pa.DataType, *, around: str = " \t"
) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """Return the numbers of texts, and which texts are numbers, or missing.

    Arrow's cast refuses a whole column for one wrong text. So what is no number is found first, in
    one pass: a column of damaged values must not take many times the time of a good one.

    >>> import pyarrow as pa
    >>> numbers, good = read_numbers(pa.array(["7", None, "x", "0x1f", " 8"]), pa.int64())
    >>> numbers.to_pylist(), good.tolist()
    ([7, None, None, None, 8], [True, True, False, False, True])
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    whole = pa.types.is_integer(kind)
    texts = pc.utf8_trim(texts, around)
    if not (whole and pc.any(pc.match_substring_regex(texts, "[xX]")).as_py()):
        try:
            return texts.cast(kind), np.ones(len(texts), bool)
        except pa.ArrowInvalid:  # at the first text that is no number
            pass
    plain = pc.match_substring_regex(texts, _PLAIN if whole else f"^{_ANY}$")
    good = np.array(pc.fill_null(plain, True))
    others = texts.filter(pa.array(~good)).unique() if whole else ()
    if len(others):
        known = [text for text in others if _is_whole(text)]
        good |= np.asarray(pc.is_in(texts, pa.array(known, texts.type)))
    return texts.take(pa.array(np.arange(len(good)), mask=~good)).cast(kind), good


def _is_whole(text: pa.StringScalar) -> bool:
    """Return whether Arrow reads one text as a whole number; hexadecimal digits are none."""
    import pyarrow as pa

    try:
        text.cast(pa.int64())
    except pa.ArrowInvalid:
        return False
    return "x" not in text.as_py().lower()


def number_of_text(text: str) -> float:
    """Return the number that a text is; NaN if it is none.

    >>> number_of_text("2.5"), number_of_text("1_000"), number_of_text("-inf")
    (2.5, nan, -inf)
    """
    found = _WHOLE.fullmatch(text)
    return float(text.partition("(")[0]) if found else float("nan")


def is_number(text: str, *, whole: bool) -> bool:
    """Return whether Arrow reads the cell of a text file as a finite number.

    >>> is_number(" 7", whole=True), is_number("1.5", whole=True), is_number("inf", whole=False)
    (True, False, False)
    """
    import pyarrow as pa

    text = text.strip(" \t")
    if not whole:
        return math.isfinite(number_of_text(text))
    return bool(re.match(_PLAIN, text)) or _is_whole(pa.scalar(text))


def float_of(value: object) -> float:
    """Return a number, or text that Arrow reads as one, as a float; NaN for anything else.

    >>> float_of("2.5"), float_of("a"), float_of(True), float_of(2**64)
    (2.5, nan, nan, 1.8446744073709552e+19)
    """
    if isinstance(value, str):
        return number_of_text(value)
    if isinstance(value, bool) or not isinstance(value, numbers.Real | Decimal):
        return float("nan")
    try:
        return float(value)
    except OverflowError:  # an integer beyond float64
        return float("inf")


def number_of(value: object) -> float:
    """Return a number, or text that Arrow reads as one, as a float; NaN for anything else."""
    if isinstance(value, str):
        return number_of_text(value.strip(" \t"))
    return float(value) if isinstance(value, bool) else float_of(value)


def log_buckets(numbers: ArrowColumn) -> pa.Array:
    """Return x as text, above 2 floor(log(x)^2), as the winners of Criteo's challenge did.

    Source: Juan et al., "3 Idiots' Approach for Display Advertising Challenge", 2014.

    >>> import pyarrow as pa
    >>> log_buckets(pa.array([None, -1, 0, 1, 2, 3, 4, 5, 1000])).to_pylist()
    ['0', '-1', '0', '1', '2', '1', '1', '2', '47']
    """
    import pyarrow as pa

    x = np.nan_to_num(np.asarray(numbers, np.float64))  # damaged numbers may not be finite
    found = np.where(x > 2, np.floor(np.log(np.maximum(x, 1)) ** 2), x)
    return pa.array(found.astype(np.int64)).cast(pa.string())


def is_missing(value: object) -> bool:
    """Return whether a value of a file is missing: nothing, or empty text."""
    return value is None or (isinstance(value, str) and not value)


def is_text(kind: pa.DataType) -> bool:
    """Return whether values are text."""
    import pyarrow as pa

    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def plain(values: ArrowColumn) -> ArrowColumn:
    """Return values without a dictionary, which a pandas category has."""
    import pyarrow as pa

    coded = pa.types.is_dictionary(values.type)
    return values.cast(values.type.value_type) if coded else values


def numbers_of_column(
    values: ArrowColumn, where: str, kind: pa.DataType | None = None
) -> ArrowColumn:
    """Return numbers as they are if they are of this kind, else as float64.

    Large integers may lose their last digits then.
    """
    import pyarrow as pa

    values = plain(values)
    if values.type == kind:
        return values
    try:
        return values.cast(pa.float64(), safe=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{where} is {values.type}, not numbers ({reason}); convert it") from error


LABEL_VALUES = {
    "0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1, "no": 0, "yes": 1,
}  # fmt: skip
"""Accepted labels in lower case; upper case such as `True` and `YES` is valid, too.

pandas writes 0.0 and 1.0 if a column of labels has been one of floating-point numbers.
"""
LARGEST = 2.0**128 - 2.0**104
"""The largest float32."""
_REMEDY = "write 1, true or yes for a click, else 0, false or no"


def parse_labels(column: ArrowColumn) -> ArrowColumn:
    """Convert a text column of labels to 0 and 1, int8; other texts become null.

    >>> import pyarrow as pa
    >>> parse_labels(pa.array(["1", "False", "YES", "0.0", "maybe"])).to_pylist()
    [1, 0, 1, 0, None]
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    index = pc.index_in(pc.utf8_lower(column), pa.array(LABEL_VALUES))
    return pc.take(pa.array(LABEL_VALUES.values(), pa.int8()), index)


def label_of(value: object) -> int | None:
    """Return a label given as text, number or boolean as 0 or 1; None if it is no label.

    >>> label_of("True"), label_of(False), label_of(1.0), label_of("1.5")
    (1, 0, 1, None)
    """
    if isinstance(value, str):
        return LABEL_VALUES.get(value.lower())
    return int(value) if isinstance(value, int | float) and value in (0, 1) else None


def label_damage(name: str, value: object) -> str:
    """Describe a value that is no label.

    >>> label_damage("y", "maybe"), label_damage("y", 2.0)
    ("y is 'maybe', neither 0 nor 1; write 1, true or yes for a click, else 0, false or no", \
'y is 2, neither 0 nor 1')
    """
    if isinstance(value, str):
        return f"{name} is {value!r:.60}, neither 0 nor 1; {_REMEDY}"
    shown = f"{value:g}" if isinstance(value, float) else f"{value!r:.60}"
    return f"{name} is {shown}, neither 0 nor 1"


def are_weights(column: ArrowColumn) -> ArrowColumn:
    """Return which numbers are weights, an Arrow array of booleans; a null is none.

    >>> import pyarrow as pa
    >>> are_weights(pa.array([0.0, 2.5, -1.0, None, float("nan"), 1e300])).to_pylist()
    [True, True, False, False, False, False]
    """
    import pyarrow.compute as pc

    inside = pc.and_(pc.greater_equal(column, 0.0), pc.less_equal(column, LARGEST))
    return pc.fill_null(inside, False)


def weight_damage(name: str, value: object) -> str:
    """Describe a value that is no weight.

    >>> weight_damage("w", "-1")
    "w is '-1', no weight; give a finite number of 0 or more"
    """
    return f"{name} is {value!r:.60}, no weight; give a finite number of 0 or more"


def rows_with_labels(
    targets: Sequence[Target], given: pa.Table, parsed: Mapping[str, ArrowColumn]
) -> ArrowColumn:
    """Return which rows of several targets have valid labels, at least one, as Arrow booleans.

    >>> import pyarrow as pa
    >>> given = pa.table({"y": ["1", "maybe", None, None], "t": [None, 2.0, 3.0, None]})
    >>> parsed = {"y": parse_labels(given["y"]), "t": given["t"]}
    >>> rows_with_labels([Target("y"), Target("t", True)], given, parsed).to_pylist()
    [True, False, True, False]
    """
    import pyarrow.compute as pc

    valid = found = None
    for target in targets:
        known = pc.is_valid(given[target.name])
        good = pc.or_(pc.invert(known), _are_labels(parsed[target.name], target.regression))
        valid = good if valid is None else pc.and_(valid, good)
        found = known if found is None else pc.or_(found, known)
    return pc.and_(valid, found)


def _are_labels(numbers: ArrowColumn, regression: bool) -> ArrowColumn:
    import pyarrow as pa
    import pyarrow.compute as pc

    if regression:
        good = pc.less_equal(pc.abs(numbers), LARGEST)
    else:
        good = pc.is_in(numbers, pa.array([0, 1], numbers.type))
    return pc.fill_null(pc.and_(good, pc.is_valid(numbers)), False)


def regression_damage(name: str, value: object) -> str:
    """Describe a value that is no label of a regression."""
    return (
        f"{name} is {value!r:.60}, no label of a regression; give a finite number, or leave it "
        "empty"
    )


def no_label(names: Sequence[str]) -> str:
    """Describe a row without any label."""
    return f"no label: {', '.join(names)} {'is' if len(names) == 1 else 'are'} missing"
