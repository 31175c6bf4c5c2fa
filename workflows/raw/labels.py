"""Label values that a raw log may have: 0, 1, true, false, yes, no."""

from __future__ import annotations

from typing import Any

LABEL_VALUES = {"0": 0, "1": 1, "false": 0, "true": 1, "no": 0, "yes": 1}
"""In any case: `True` and `YES` count as well."""
REMEDY = "write 1, true or yes for a click, and 0, false or no for none"


def parse_labels(column: Any) -> Any:
    """0 and 1 for the words of a column of text, int8; null for any other text.

    >>> import pyarrow as pa
    >>> parse_labels(pa.array(["1", "False", "YES", "maybe"])).to_pylist()
    [1, 0, 1, None]
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    index = pc.index_in(pc.utf8_lower(column), pa.array(LABEL_VALUES))
    return pc.take(pa.array(LABEL_VALUES.values(), pa.int8()), index)


def is_label(text: str) -> bool:
    """Whether it is one of the words.

    >>> is_label("True"), is_label("1.5")
    (True, False)
    """
    return text.lower() in LABEL_VALUES
