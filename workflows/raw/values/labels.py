"""Parse the labels of a raw log: 0, 1, true, false, yes or no; and check the weights of rows.

A weight is a finite number of 0 or more that a float32 can hold. With several targets, a label may
be missing if the row has another, and that of a regression is any finite number of a float32.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin.addresses import FilePath
from cowclip_merlin.errors import InputError
from cowclip_merlin.targets import Target
from cowclip_merlin.types import Array, ArrowColumn, JsonObject

if TYPE_CHECKING:
    import pyarrow as pa

LABEL_VALUES = {
    "0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1, "no": 0, "yes": 1,
}  # fmt: skip
"""Accepted labels in lower case; upper case such as `True` and `YES` is valid, too.

pandas writes 0.0 and 1.0 if a column of labels has been one of floating-point numbers.
"""
LARGEST = 2.0**128 - 2.0**104
"""The largest float32."""
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

    >>> damage_of("y", "maybe"), damage_of("y", 2.0)
    ("y is 'maybe', neither 0 nor 1; write 1, true or yes for a click, else 0, false or no", \
'y is 2, neither 0 nor 1')
    """
    if isinstance(value, str):
        return f"{name} is {value!r:.60}, neither 0 nor 1; {_REMEDY}"
    shown = f"{value:g}" if isinstance(value, float) else f"{value!r:.60}"
    return f"{name} is {shown}, neither 0 nor 1"


def are_weights(column: ArrowColumn) -> ArrowColumn:
    """Return which numbers are weights, an Arrow array of booleans; a null is none.

    >>> import pyarrow as pa
    >>> are_weights(pa.array([0.0, 2.5, -1.0, None, float("nan"), 1e300])).to_pylist()
    [True, True, False, False, False, False]
    """
    import pyarrow.compute as pc

    inside = pc.and_(pc.greater_equal(column, 0.0), pc.less_equal(column, LARGEST))
    return pc.fill_null(inside, False)


def weight_damage(name: str, value: object) -> str:
    """Describe a value that is no weight.

    >>> weight_damage("w", "-1")
    "w is '-1', no weight; give a finite number of 0 or more"
    """
    return f"{name} is {value!r:.60}, no weight; give a finite number of 0 or more"


def rows_with_labels(
    targets: Sequence[Target], given: pa.Table, parsed: Mapping[str, ArrowColumn]
) -> ArrowColumn:
    """Return which rows of several targets have valid labels, at least one, as Arrow booleans.

    >>> import pyarrow as pa
    >>> given = pa.table({"y": ["1", "maybe", None, None], "t": [None, 2.0, 3.0, None]})
    >>> parsed = {"y": parse_labels(given["y"]), "t": given["t"]}
    >>> rows_with_labels([Target("y"), Target("t", True)], given, parsed).to_pylist()
    [True, False, True, False]
    """
    import pyarrow.compute as pc

    valid = found = None
    for target in targets:
        known = pc.is_valid(given[target.name])
        good = pc.or_(pc.invert(known), _are_labels(parsed[target.name], target.regression))
        valid = good if valid is None else pc.and_(valid, good)
        found = known if found is None else pc.or_(found, known)
    return pc.and_(valid, found)


def _are_labels(numbers: ArrowColumn, regression: bool) -> ArrowColumn:
    import pyarrow as pa
    import pyarrow.compute as pc

    if regression:
        good = pc.less_equal(pc.abs(numbers), LARGEST)
    else:
        good = pc.is_in(numbers, pa.array([0, 1], numbers.type))
    return pc.fill_null(pc.and_(good, pc.is_valid(numbers)), False)


def regression_damage(name: str, value: object) -> str:
    """Describe a value that is no label of a regression."""
    return (
        f"{name} is {value!r:.60}, no label of a regression; give a finite number, or leave it "
        "empty"
    )


def no_label(names: Sequence[str]) -> str:
    """Describe a row without any label."""
    return f"no label: {', '.join(names)} {'is' if len(names) == 1 else 'are'} missing"


@dataclass
class LabelCounts:
    """What is known of the labels of one target so far.

    Attributes:
        rows: split -> rows with a label.
        total: sum of the labels; of labels of 0 and 1 the number of ones.
        mean: of the training rows.
        squares: sum of the squared distances from this mean.
    """

    rows: Counter[str] = field(default_factory=Counter)
    total: float = 0.0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, split: str, labels: Array) -> None:
        """Count the labels of rows of a split, [n]; a missing one is NaN."""
        known = labels[~np.isnan(labels)].astype(np.float64)
        before = self.rows[split]
        self.rows[split] += len(known)
        self.total += known.sum().item()
        if split == "train" and len(known):  # as Chan et al. (1979), without large squares
            mean = known.mean().item()
            apart, share = mean - self.mean, len(known) / self.rows[split]
            self.mean += apart * share
            self.squares += np.square(known - mean).sum().item() + apart**2 * before * share

    @property
    def spread(self) -> float:
        """Standard deviation of the labels of the training rows; 1 if all are equal."""
        return math.sqrt(self.squares / max(self.rows["train"], 1)) or 1.0

    def check(self, target: Target, file: FilePath) -> None:
        """Check that a target can be learned."""
        every = sum(self.rows.values())
        if target.regression:
            wrong = "" if every else "has a label"
        else:
            ones = {"has label 1": self.total, "has label 0": every - self.total}
            wrong = next((words for words, count in ones.items() if not count), "")
        if wrong:
            needed = "numbers" if target.regression else "positive labels (1) and negative ones (0)"
            raise InputError(
                f"{file}: no row {wrong} in column {target.name!r}; a target needs {needed}"
            )

    def as_dict(self) -> JsonObject:
        """Return plain values for JSON."""
        rows = sum(self.rows.values())
        return {"rows": rows, "mean": self.total / rows if rows else None}
