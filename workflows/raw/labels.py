"""Parse the labels of a raw log: 0, 1, true, false, yes or no; and check the weights of rows.

A weight is a finite number of 0 or more that a float32 can hold.
"""

from __future__ import annotations

from cowclip_merlin.types import ArrowColumn

LABEL_VALUES = {
    "0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1, "no": 0, "yes": 1,
}  # fmt: skip
"""Accepted labels in lower case; upper case such as `True` and `YES` is valid, too.

pandas writes 0.0 and 1.0 if a column of labels has been one of floating-point numbers.
"""
_LARGEST_WEIGHT = 2.0**128 - 2.0**104  # of a float32
_REMEDY = "write 1, true or yes for a click, else 0, false or no"


def parse_labels(column: ArrowColumn) -> ArrowColumn:
    """Convert a text column of labels to 0 and 1, int8; other texts become null.

    >>> import pyarrow as pa
    >>> parse_labels(pa.array(["1", "False", "YES", "0.0", "maybe"])).to_pylist()
    [1, 0, 1, 0, None]
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    index = pc.index_in(pc.utf8_lower(column), pa.array(LABEL_VALUES))
    return pc.take(pa.array(LABEL_VALUES.values(), pa.int8()), index)


def label_of(value: object) -> int | None:
    """Return a label given as text, number or boolean as 0 or 1; None if it is no label.

    >>> label_of("True"), label_of(False), label_of(1.0), label_of("1.5")
    (1, 0, 1, None)
    """
    if isinstance(value, str):
        return LABEL_VALUES.get(value.lower())
    return int(value) if isinstance(value, int | float) and value in (0, 1) else None


def damage_of(name: str, value: object) -> str:
    """Describe a value that is no label.

    >>> damage_of("y", "maybe")
    "y is 'maybe', neither 0 nor 1; write 1, true or yes for a click, else 0, false or no"
    """
    return f"{name} is {value!r:.60}, neither 0 nor 1; {_REMEDY}"


def are_weights(column: ArrowColumn) -> ArrowColumn:
    """Return which numbers are weights, an Arrow array of booleans; a null is none.

    >>> import pyarrow as pa
    >>> are_weights(pa.array([0.0, 2.5, -1.0, None, float("nan"), 1e300])).to_pylist()
    [True, True, False, False, False, False]
    """
    import pyarrow.compute as pc

    inside = pc.and_(pc.greater_equal(column, 0.0), pc.less_equal(column, _LARGEST_WEIGHT))
    return pc.fill_null(inside, False)


def is_weight(text: str) -> bool:
    """Return whether text is a weight.

    >>> is_weight("2.5"), is_weight("-1"), is_weight(""), is_weight("nan")
    (True, False, False, False)
    """
    try:
        return 0 <= float(text) <= _LARGEST_WEIGHT
    except ValueError:
        return False


def weight_damage(name: str, value: object) -> str:
    """Describe a value that is no weight.

    >>> weight_damage("w", "-1")
    "w is '-1', no weight; give a finite number of 0 or more"
    """
    return f"{name} is {value!r:.60}, no weight; give a finite number of 0 or more"
