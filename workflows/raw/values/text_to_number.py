"""Numbers that are given as text, as Arrow reads them: all of a column at once, or one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cowclip_merlin.types import ArrowColumn

if TYPE_CHECKING:
    import pyarrow as pa

FINITE = r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?"
"""Regular expression of a number in text, without infinity and NaN."""

_ANY = rf"({FINITE}|[+-]?((?i:inf(inity)?|nan)|(?i:nan)\([0-9A-Za-z_]*\)))"
_WHOLE = re.compile(_ANY, re.ASCII)


def numbers_of_texts(column: ArrowColumn) -> pa.Array:
    """Return a column of text as float64 numbers; null where a text is no number.

    Arrow's cast refuses a whole column for one such text. So what is no number is found first,
    in one pass: a column of damaged values must not take many times the time of a good one.

    Args:
        column: Arrow array of text; spaces around a number do not count.

    >>> import pyarrow as pa
    >>> numbers_of_texts(pa.array(["1.5", " +2 ", "1e999", "a", "", None])).to_pylist()
    [1.5, 2.0, inf, None, None, None]
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    text = pc.utf8_trim(column, " ")
    try:
        return text.cast(pa.float64())
    except pa.ArrowInvalid:
        text = pc.if_else(pc.match_substring_regex(text, f"^{_ANY}$"), text, None)
    try:
        return text.cast(pa.float64())
    except pa.ArrowInvalid:  # a later Arrow, which refuses what is too large
        return pa.array([None if x is None else number_of_text(x) for x in text.to_pylist()])


def number_of_text(text: str) -> float:
    """Return the number that a text is; NaN if it is none.

    >>> number_of_text("2.5"), number_of_text("1_000"), number_of_text("-inf")
    (2.5, nan, -inf)
    """
    found = _WHOLE.fullmatch(text)
    return float(text.partition("(")[0]) if found else float("nan")
