"""The text of a value, which decides its id: the same text for every type that can hold the value.

Integers, floats and decimals of one column differ between files, because pandas makes floats of
integers with missing values. Types whose text depends on their precision or unit are refused.

One text for whole numbers: "47.0", as pandas writes 47 beside missing values, is read as "47".
Such a text is what a float prints: maybe a minus, a whole number below 2**53 without leading zeros,
a point and zeros. All other texts stay as they are, like "007.0", "1e3", "4.5" and
"9007199254740992.0".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin.errors import InputError
from cowclip_merlin.types import ArrowColumn, Json

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


_EXACT_BITS = {16: 11, 32: 24, 64: 53}
"""Bits of a float -> n, such that all whole numbers below 2**n are exact, and 2**n is not."""


_MOST_BYTES = 2**31 - 2
"""Bytes of text in one Arrow array of `string`, whose offsets have 32 bits."""


def text_of_values(values: ArrowColumn, *, where: str) -> ArrowColumn:
    """Return the unique text of each value; a null, or empty text, becomes null.

    Text stays as it is. A whole number becomes its digits, whether it is stored as an integer, a
    float or a decimal. Booleans become "true" and "false", dates "2001-01-31". A column with a
    dictionary (a pandas category) has the texts of its values.

    >>> import pyarrow as pa
    >>> text_of_values(pa.array([47.0, None, -0.0]), where="column 'user'").to_pylist()
    ['47', None, '0']
    >>> text_of_values(pa.array([0.5]), where="column 'user'")
    Traceback (most recent call last):
    ...
    cowclip_merlin.errors.InputError: column 'user' has 0.5 (double), whose text is not unique; \
give text or whole numbers
    """
    import pyarrow.types as types

    kind = values.type
    if types.is_dictionary(kind):
        return text_of_values(values.cast(kind.value_type), where=where)
    if types.is_list(kind) or types.is_large_list(kind):
        raise InputError(f"{where} is {kind}, several values per row; name it in `multi`, too")
    if types.is_temporal(kind) and not types.is_date(kind):
        raise InputError(
            f"{where} is {kind}, whose text is not unique; give text, dates or whole numbers"
        )
    if types.is_floating(kind) or types.is_decimal(kind):
        to_whole = _whole_floats if types.is_floating(kind) else _whole_decimals
        values = _converted(values, lambda x: to_whole(x, where), where)
    return printed_text(values, where=where)


def printed_text(values: ArrowColumn, *, where: str) -> ArrowColumn:
    """Return the text of each value as Arrow prints it; a null, or empty text, becomes null.

    Equal values of two types may have two texts, such as "1e+15" and "1000000000000000".
    """
    import pyarrow as pa

    return without_empty(_converted(values, lambda x: x.cast(pa.string()), where))


def in_chunks(texts: pa.LargeStringArray) -> pa.ChunkedArray:
    """Return text without nulls as chunks of `string`, each of which has at most 2 GiB.

    Whoever joins the chunks again needs `large_string`.
    """
    import pyarrow as pa

    _, starts, text = texts.buffers()
    starts, text = np.frombuffer(starts or b"", np.int64), text or pa.py_buffer(b"")
    starts = starts[texts.offset :][: len(texts) + 1]
    chunks, first = [], 0
    while first < len(texts):
        end = int(np.searchsorted(starts, starts[first] + _MOST_BYTES, side="right")) - 1
        end = max(end, first + 1)
        offsets = (starts[first : end + 1] - starts[first]).astype(np.int32)
        part = text.slice(int(starts[first]), int(offsets[-1]))
        buffers = [None, pa.py_buffer(offsets), part]
        chunks.append(pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers))
        first = end
    return pa.chunked_array(chunks, pa.string())


def text_of_series(values: pd.Series | pd.Index, name: str) -> pa.Array:
    """Return the unique text of each value of a pandas column, as `text_of_values` does.

    >>> import pandas as pd
    >>> text_of_series(pd.Series([True, None]), "mobile").to_pylist()
    ['true', None]
    """
    return text_of_values(arrow_of_series(values, name), where=f"column {name!r}")


def arrow_of_series(values: pd.Series | pd.Index | list[object], name: str) -> pa.Array:
    """Convert a pandas column or a list to an Arrow array; NaN and NaT become null."""
    import pyarrow as pa

    if hasattr(values, "sparse"):  # of pandas, which Arrow does not read
        values = values.sparse.to_dense()
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        kind = getattr(values, "dtype", "a list")
        raise InputError(
            f"column {name!r} is {kind} with values of several types; give it one type"
        ) from None


def _converted(
    values: ArrowColumn, convert: Callable[[ArrowColumn], ArrowColumn], where: str
) -> ArrowColumn:
    import pyarrow as pa

    try:
        return convert(values)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InputError(
            f"{where} is {values.type}, not text or numbers ({str(error).splitlines()[0]}); "
            "convert it"
        ) from error


def _whole_floats(values: ArrowColumn, where: str) -> ArrowColumn:
    """Return floats as int64."""
    import pyarrow as pa
    import pyarrow.compute as pc

    exact = pc.less(pc.abs(values), 2.0 ** _EXACT_BITS[values.type.bit_width])
    good = pc.and_(exact, pc.equal(values, pc.floor(values)))
    if pc.all(good).as_py() is False:
        _refuse(values.filter(pc.invert(good))[0].as_py(), values.type, where)
    return values.cast(pa.int64())


def _whole_decimals(values: ArrowColumn, where: str) -> ArrowColumn:
    """Return decimals without places after the point."""
    import pyarrow as pa

    kind = values.type
    whole = pa.decimal128(38, 0) if kind.bit_width == 128 else pa.decimal256(76, 0)
    try:
        return values.cast(whole)
    except pa.ArrowInvalid:
        for value in values.to_pylist():
            if value is not None and value != value.to_integral_value():
                _refuse(value, kind, where)
        raise


def _refuse(value: float | Decimal, kind: pa.DataType, where: str) -> None:
    """Raise an error for a number without a unique text."""
    if math.isnan(value):
        why = "which is no id; give null for a missing value"
    elif value == value // 1 or math.isinf(value):
        why = "whose last digits may be lost; give text or 64-bit whole numbers"
    else:
        why = "whose text is not unique; give text or whole numbers"
    raise InputError(f"{where} has {value} ({kind}), {why}")


def without_empty(text: ArrowColumn) -> ArrowColumn:
    """Replace empty texts by null.

    `if_else` of pyarrow 14 returns damaged texts for a column that starts inside a buffer.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    empty = np.asarray(pc.fill_null(pc.equal(text, ""), False))
    if not empty.any():
        return text
    return text.take(pa.array(np.arange(len(empty)), mask=empty))


EXACT = 2**53
"""All whole numbers below it are exact in a float64, and it is not."""


def _below(limit: str) -> str:
    """Return a pattern of the digits of whole numbers from 1 to below `limit`."""
    wide = len(limit) - 1
    parts = [f"[1-9][0-9]{{0,{wide - 1}}}"]
    for i, digit in enumerate(limit):
        lowest = int(i == 0)
        if int(digit) > lowest:
            parts.append(f"{limit[:i]}[{lowest}-{int(digit) - 1}][0-9]{{{wide - i}}}")
    return "|".join(parts)


WHOLE_FLOAT = rf"^(?:-?(0)|(-?(?:{_below(str(EXACT))})))\.0+$"
"""Pattern of the texts that are read as whole numbers, for `re` and for RE2."""
DIGITS = r"\1\2"
"""What replaces such a text."""

_COMPILED = re.compile(WHOLE_FLOAT, re.ASCII)


def whole_text(text: str) -> str:
    r"""Return the digits of a whole float, and any other text as it is.

    >>> whole_text("47.0"), whole_text("-0.00"), whole_text("007.0"), whole_text("47.5")
    ('47', '0', '007.0', '47.5')
    >>> whole_text("9007199254740991.0"), whole_text("9007199254740992.0")
    ('9007199254740991', '9007199254740992.0')
    """
    if ".0" not in text or text.endswith("\n"):  # `$` of `re` is also before a last line end
        return text
    return _COMPILED.sub(DIGITS, text)


def read_as(whole_floats: Mapping[str, str], *, remedy: bool) -> list[str]:
    """Return a line for each column with such a text: what was read, and how to keep it.

    >>> read_as({"user": "47.0"}, remedy=True)
    ['user: 47.0 read as 47, as pandas writes it; --text user keeps text']
    """
    return [
        f"{name}: {text} read as {whole_text(text)}, as pandas writes it"
        + (f"; --text {name} keeps text" if remedy else "")
        for name, text in whole_floats.items()
    ]


def whole_texts(column: ArrowColumn) -> tuple[ArrowColumn, str]:
    """Return the texts of a column as `whole_text` does, and the first one that it changed.

    A column without such texts costs one search in its bytes.

    >>> import pyarrow as pa
    >>> values, first = whole_texts(pa.array(["a", "47.0", None, "47"]).dictionary_encode())
    >>> values.to_pylist(), values.dictionary.to_pylist(), first
    (['a', '47', None, '47'], ['a', '47'], '47.0')
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(column, pa.ChunkedArray):
        found = [whole_texts(chunk) for chunk in column.chunks]
        first = next((text for _, text in found if text), "")
        chunks = [chunk for chunk, _ in found]
        return (pa.chunked_array(chunks, column.type) if first else column), first
    if pa.types.is_list(column.type):
        values, first = whole_texts(column.values)
        return (pa.ListArray.from_arrays(column.offsets, values) if first else column), first
    coded = pa.types.is_dictionary(column.type)
    texts = column.dictionary if coded else column
    if not _has_point_zero(texts):
        return column, ""
    whole = pc.replace_substring_regex(texts, WHOLE_FLOAT, DIGITS)
    place = pc.index(pc.not_equal(whole, texts), True).as_py()
    if place < 0:
        return column, ""
    first = texts[place].as_py()
    if not coded:
        return whole, first
    again = whole.dictionary_encode()  # two texts may have become one
    codes = again.indices.take(column.indices)
    return pa.DictionaryArray.from_arrays(codes, again.dictionary), first


def _has_point_zero(column: pa.StringArray) -> bool:
    """Return whether ".0" is in the bytes of the texts, which takes a fraction of a nanosecond."""
    import pyarrow as pa

    if not len(column) or column.buffers()[2] is None:
        return False
    ends = pa.Array.from_buffers(
        pa.int64() if pa.types.is_large_string(column.type) else pa.int32(),
        len(column) + 1,
        [None, column.buffers()[1]],
        offset=column.offset,
    )
    start, end = ends[0].as_py(), ends[len(column)].as_py()
    return b".0" in column.buffers()[2].slice(start, end - start).to_pybytes()


class Damage(Exception):
    """What is wrong with a value."""


def id_text(name: str, value: Json) -> str | None:
    """Return the text of a JSON value as `text_of_values` does."""
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value.isascii() or value.encode("utf-8")
        except UnicodeEncodeError:  # half of a pair of escapes
            raise Damage(f"{name} has characters that are not UTF-8 text") from None
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list):
        raise Damage(f"{name} has a list of values; name it in `multi`, or give one value")
    if not isinstance(value, float):
        raise Damage(f"{name} is an object; give text or a number")
    if value != value // 1 or abs(value) >= EXACT:
        raise Damage(f"{name} is {value}, whose text is not unique; give text or whole numbers")
    return str(int(value))
