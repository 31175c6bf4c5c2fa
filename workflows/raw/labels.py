"""Parse the labels of a raw log: 0, 1, true, false, yes or no."""

from __future__ import annotations

from typing import Any

LABEL_VALUES = {
    "0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1, "no": 0, "yes": 1,
}  # fmt: skip
"""Accepted labels in lower case; upper case such as `True` and `YES` is valid, too.

pandas writes 0.0 and 1.0 if a column of labels has been one of floating-point numbers.
"""
_REMEDY = "write 1, true or yes for a click, else 0, false or no"


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


def label_of(value: Any) -> int | None:
    """Return a label given as text, number or boolean as 0 or 1; None if it is no label.

    >>> label_of("True"), label_of(False), label_of(1.0), label_of("1.5")
    (1, 0, 1, None)
    """
    if isinstance(value, str):
        return LABEL_VALUES.get(value.lower())
    return int(value) if isinstance(value, int | float) and value in (0, 1) else None


def damage_of(name: str, value: Any) -> str:
    """Describe a value that is no label.

    >>> damage_of("y", "maybe")
    "y is 'maybe', neither 0 nor 1; write 1, true or yes for a click, else 0, false or no"
    """
    return f"{name} is {value!r:.60}, neither 0 nor 1; {_REMEDY}"
