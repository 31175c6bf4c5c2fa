"""One text for whole numbers: "47.0", as pandas writes 47 beside missing values, is read as "47".

Such a text is what a float prints: maybe a minus, a whole number below 2**53 without leading zeros,
a point and zeros. All other texts stay as they are, like "007.0", "1e3", "4.5" and
"9007199254740992.0".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cowclip_merlin.types import ArrowColumn

if TYPE_CHECKING:
    import pyarrow as pa

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

    Args:
        column: Arrow array or chunked array of text, plain or with a dictionary, or of lists of
            text, [n].

    Returns:
        The column, itself if nothing changed; and a text of the input, "" if nothing changed.

    >>> import pyarrow as pa
    >>> values, first = whole_texts(pa.array(["a", "47.0", None, "47"]).dictionary_encode())
    >>> values.to_pylist(), values.dictionary.to_pylist(), first
    (['a', '47', None, '47'], ['a', '47'], '47.0')
    """
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        found = [whole_texts(chunk) for chunk in column.chunks]
        first = next((text for _, text in found if text), "")
        chunks = [chunk for chunk, _ in found]
        return (pa.chunked_array(chunks, column.type) if first else column), first
    if pa.types.is_dictionary(column.type):
        return _of_dictionary(column)
    if pa.types.is_list(column.type):
        values, first = whole_texts(column.values)
        return (pa.ListArray.from_arrays(column.offsets, values) if first else column), first
    return _of_texts(column)


def _of_dictionary(column: pa.DictionaryArray) -> tuple[pa.DictionaryArray, str]:
    import pyarrow as pa

    texts, first = whole_texts(column.dictionary)
    if not first:
        return column, ""
    again = texts.dictionary_encode()  # two texts may have become one
    codes = again.indices.take(column.indices)
    return pa.DictionaryArray.from_arrays(codes, again.dictionary), first


def _of_texts(column: pa.StringArray) -> tuple[pa.StringArray, str]:
    import pyarrow.compute as pc

    if not _has_point_zero(column):
        return column, ""
    whole = pc.replace_substring_regex(column, WHOLE_FLOAT, DIGITS)
    place = pc.index(pc.not_equal(whole, column), True).as_py()
    return (column, "") if place < 0 else (whole, column[place].as_py())


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
