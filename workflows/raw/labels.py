"""Words for a click and for none, as spreadsheets and data frames write them."""

from __future__ import annotations

from typing import Any

WORDS = {"0": 0, "1": 1, "false": 0, "true": 1, "no": 0, "yes": 1}
"""In any case: `True` and `YES` count as well."""
WAY_OUT = "write 1, true or yes for a click, and 0, false or no for none"


def as_numbers(column: Any) -> Any:
    """0 and 1 for the words of a column of text, int8; null for any other text.

    >>> import pyarrow as pa
    >>> as_numbers(pa.array(["1", "False", "YES", "maybe"])).to_pylist()
    [1, 0, 1, None]
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    index = pc.index_in(pc.utf8_lower(column), pa.array(WORDS))
    return pc.take(pa.array(WORDS.values(), pa.int8()), index)


def is_label(text: str) -> bool:
    """Whether it is one of the words.

    >>> is_label("True"), is_label("1.5")
    (True, False)
    """
    return text.lower() in WORDS
