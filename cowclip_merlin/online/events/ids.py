"""Values of a categorical column to 64-bit ids, without a vocabulary.

A value's text alone decides its id, so a log and a request give equal ids:

- a whole number from -(2^63 - 1) to 2^63 - 1 is its own id: "7" and 7 are 7;
- any other text has the BLAKE2b hash (RFC 7693) of its UTF-8 bytes, 8 bytes long, read as a signed
  little-endian number: "1.0", "007", "+7" and numbers beyond that range are such texts;
- a missing value, which an empty text is, too, has the id `MISSING`, and no other value has it.

Among n distinct values of a field the chance that any two share an id is n^2 / 2^65 at most:
3e-8 for a million values, 3e-4 for 100 million.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

MISSING = -(2**63)
"""Id of a missing value."""

_SHORT_WHOLE = r"^(0|-?[1-9][0-9]{0,17})$"  # fits 64 bits for sure


def text_id(text: str) -> int:
    """Id of one value that is not missing.

    Raises:
        UnicodeEncodeError: the text holds half a surrogate pair, which UTF-8 cannot express.

    >>> text_id("42"), text_id("-1"), text_id("042")
    (42, -1, -3674937487732630020)
    """
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) <= 19 and _is_canonical(text):
        number = int(text)
        if -(2**63) < number < 2**63:
            return number
    digest = hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest()
    return max(int.from_bytes(digest, "little", signed=True), MISSING + 1)


def _is_canonical(text: str) -> bool:
    """Whether these digits, maybe after a minus, are how the number is printed."""
    return str(int(text)) == text


def text_ids(column: Any) -> npt.NDArray[np.int64]:
    """Ids of a column of text, int64 [n]; null and empty text are missing.

    >>> import pyarrow as pa
    >>> text_ids(pa.array(["7", None, "7", ""])).tolist() == [7, MISSING, 7, MISSING]
    True
    """
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    encoded = column.dictionary_encode()
    # One more than there are values: null is the last.
    ids = np.append(_distinct_ids(encoded.dictionary), MISSING)
    return ids[encoded.indices.fill_null(len(ids) - 1).to_numpy(zero_copy_only=False)]


def _distinct_ids(texts: Any) -> npt.NDArray[np.int64]:
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = pc.match_substring_regex(texts, _SHORT_WHOLE)
    ids = np.empty(len(texts), np.int64)
    mask = whole.to_numpy(zero_copy_only=False).astype(bool)
    ids[mask] = texts.filter(whole).cast(pa.int64()).to_numpy()
    others = texts.filter(pc.invert(whole)).to_pylist()
    ids[~mask] = [text_id(text) if text else MISSING for text in others]
    return ids
