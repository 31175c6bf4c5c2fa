"""Read texts as numbers, as Arrow does, and find all that are none in one pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cowclip_merlin.types import ArrowColumn

if TYPE_CHECKING:
    import pyarrow as pa

_WHOLE = r"^-?[0-9]{1,18}$"
_NUMBER = r"^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$"
"""Texts that surely are numbers; Arrow knows a few more, such as inf."""


def read_numbers(texts: ArrowColumn, kind: pa.DataType) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """Return the numbers of texts, and which texts are numbers, or missing.

    Spaces and tabs around a number do not count, as when Arrow reads a text file.

    Args:
        texts: Arrow array or chunked array of text, [n].
        kind: float64, or int64, which knows no hexadecimal digits here.

    Returns:
        Arrow array of `kind`, [n], null where a text is missing or wrong; and bool [n].

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
    if not (whole and pc.any(pc.match_substring_regex(texts, "[xX]")).as_py()):
        try:
            return texts.cast(kind), np.ones(len(texts), bool)
        except pa.ArrowInvalid:  # at the first text that is no number
            pass
    texts = pc.utf8_trim(texts, " \t")
    plain = pc.match_substring_regex(texts, _WHOLE if whole else _NUMBER)
    good = np.array(pc.fill_null(plain, True))
    others = texts.filter(pa.array(~good)).unique()
    if len(others):
        known = [text for text in others if _is_number(text, kind)]
        good |= np.asarray(pc.is_in(texts, pa.array(known, texts.type)))
    return texts.take(pa.array(np.arange(len(good)), mask=~good)).cast(kind), good


def _is_number(text: pa.StringScalar, kind: pa.DataType) -> bool:
    """Return whether Arrow reads one text as a number; hexadecimal digits are none."""
    import pyarrow as pa

    try:
        text.cast(kind)
    except pa.ArrowInvalid:
        return False
    return not pa.types.is_integer(kind) or "x" not in text.as_py().lower()
