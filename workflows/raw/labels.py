"""Parse the labels of a raw log: 0, 1, true, false, yes or no."""

from __future__ import annotations

from typing import Any

LABEL_VALUES = {
    "0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1, "no": 0, "yes": 1,
}  # fmt: skip
"""Accepted labels in lower case; upper case such as `True` and `YES` is valid, too.

pandas writes 0.0 and 1.0 if a column of labels has been one of floating-point numbers.
"""
REMEDY = "write 1, true or yes for a click, else 0, false or no"


def parse_labels(column: Any) -> Any:
    """Convert a text column of labels to 0 and 1, int8; other texts become null.

    >>> import pyarrow as pa
    >>> parse_labels(pa.array(["1", "False", "YES", "0.0", "maybe"])).to_pylist()
    [1, 0, 1, 0, None]
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    index = pc.index_in(pc.utf8_lower(column), pa.array(LABEL_VALUES))
    return pc.take(pa.array(LABEL_VALUES.values(), pa.int8()), index)


def is_label(text: str) -> bool:
    """Return whether the text is a valid label.

    >>> is_label("True"), is_label("1.5")
    (True, False)
    """
    return text.lower() in LABEL_VALUES
