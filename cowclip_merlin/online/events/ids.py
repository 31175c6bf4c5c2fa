"""Values of a categorical column to 64-bit ids, without a vocabulary.

A value's text alone decides its id, so a log and a request give equal ids:

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
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from cowclip_merlin.batch import Ids
from cowclip_merlin.online.events.features import CategoricalColumn
from cowclip_merlin.types import ArrowColumn
from cowclip_merlin.workflows.raw.values.multi_values import cut_lists
from cowclip_merlin.workflows.raw.values.value_text import whole_text, whole_texts

if TYPE_CHECKING:
    import pyarrow as pa

MISSING = -(2**63)
"""Id of a missing value."""

_SHORT_WHOLE = r"^(0|-?[1-9][0-9]{0,17})$"  # fits 64 bits for sure


def text_id(text: str) -> int:
    """Id of one value that is not missing.

    Raises:
        UnicodeEncodeError: the text holds half a surrogate pair, which UTF-8 cannot express.

    >>> text_id("42"), text_id("-1"), text_id("42.0"), text_id("042")
    (42, -1, 42, -3674937487732630020)
    """
    return _id_of_text(whole_text(text))


def _id_of_text(text: str) -> int:
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
        return np.array(column.fill_null(MISSING))  # one that may be written
    encoded = _one_array(column).dictionary_encode()
    # One more than there are values: null is the last.
    texts = encoded.dictionary if keep_text else whole_texts(encoded.dictionary)[0]
    ids = np.append(_distinct_ids(texts), MISSING)
    return ids[encoded.indices.fill_null(len(ids) - 1).to_numpy(zero_copy_only=False)]


def _distinct_ids(texts: pa.Array) -> npt.NDArray[np.int64]:
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = pc.match_substring_regex(texts, _SHORT_WHOLE)
    ids = np.empty(len(texts), np.int64)
    mask = whole.to_numpy(zero_copy_only=False).astype(bool)
    ids[mask] = texts.filter(whole).cast(pa.int64()).to_numpy()
    others = texts.filter(pc.invert(whole)).to_pylist()
    ids[~mask] = [_id_of_text(text) if text else MISSING for text in others]
    return ids


class _Column(NamedTuple):
    """Ids of one column, int64 [m], and how many each row has, int32 [n]; None: one each."""

    ids: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int32] | None = None


def encode_ids(table: pa.Table, columns: Sequence[CategoricalColumn]) -> Ids:
    """Return the ids of all rows, int64; the form with lengths if a column has `lists`.

    Args:
        table: Arrow table of text, in which null is a missing value. Columns with `lists` are lists
            of text, without nulls.
        columns: the categorical columns. One that shares the table of another has its buckets,
            and keeps its text as that one does.
    """
    names = [column.name for column in columns]
    owners = [names.index(column.table or column.name) for column in columns]
    found = [
        _encode(table[column.name], field, replace(column, **_of_table(columns[field])))
        for field, column in zip(owners, columns)
    ]
    if any(column.lists for column in columns):
        return Ids.of_columns(found)
    rows = [ids for ids, _ in found]
    return Ids(np.stack(rows, axis=1) if rows else np.empty((table.num_rows, 0), np.int64))


def _of_table(owner: CategoricalColumn) -> dict[str, object]:
    """Return what columns that share a table take over from the column that it is named after."""
    return {"buckets": owner.buckets, "text": owner.text}


def _encode(values: ArrowColumn, field: int, column: CategoricalColumn) -> _Column:
    """Return the ids of one column, or their buckets."""
    if column.lists is None:
        return _Column(_ids(values, field, column))
    if column.lists.max_values:
        values = cut_lists(values, column.lists.max_values, column.lists.keep)
    values = _one_array(values)
    lengths = np.asarray(values.value_lengths()).astype(np.int32)
    return _Column(_ids(values.flatten(), field, column), lengths)


def _ids(text: ArrowColumn, field: int, column: CategoricalColumn) -> npt.NDArray[np.int64]:
    ids = text_ids(text, keep_text=column.text)
    if column.buckets is None:
        return ids
    from cowclip_merlin.online.events.buckets import bucket_ids  # imports numba

    return bucket_ids(ids, field, column.buckets)


def _one_array(column: ArrowColumn) -> pa.Array:
    import pyarrow as pa

    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
