"""Numbers of a continuous column as the models take them, without a fit to the stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cowclip_merlin.checks import is_finite
from cowclip_merlin.errors import InputError
from cowclip_merlin.types import Json
from cowclip_merlin.workflows.prepared.folder import PreparedData

Floats = npt.NDArray[np.floating]


def _signed_log(x: Floats) -> Floats:
    return np.sign(x) * np.log1p(np.abs(x))


def _log(x: Floats) -> Floats:
    # In single precision, as NVTabular's LogOp: numbers of a prepared folder come out the same.
    return np.log(np.maximum(x, 0).astype(np.float32) + 1)


def _unchanged(x: Floats) -> Floats:
    return x


TRANSFORMS: dict[str, Callable[[Floats], Floats]] = {
    "signed_log": _signed_log,
    "log": _log,
    "none": _unchanged,
}
"""signed_log: sign(x) log(1 + |x|); log: log(1 + x), negative values as 0, as in `prepare`."""


@dataclass(frozen=True, kw_only=True)
class NumberScaling:
    """How a continuous column is transformed: t(x), or (t(x) - lower) / (upper - lower).

    Attributes:
        transform: the name of t, one of `TRANSFORMS`.
        lower: t of the smallest usual value; None for no scaling.
        upper: t of the largest.
    """

    transform: str = "signed_log"
    lower: float | None = None
    upper: float | None = None

    @classmethod
    def from_range(cls, transform: str, minimum: float, maximum: float) -> NumberScaling:
        """The scaling that maps this range of raw values to [0, 1]; others go beyond.

        Raises:
            InputError: the range is empty.

        >>> scaling = NumberScaling.from_range("none", 10, 20)
        >>> scaling.apply(np.array([10.0, 15.0, 30.0])).tolist()
        [0.0, 0.5, 2.0]
        """
        ends = TRANSFORMS[transform](np.array([minimum, maximum], np.float64))
        lower, upper = (float(end) for end in ends)
        if not lower < upper:
            raise InputError(
                f"minimum is {minimum:g} and maximum {maximum:g}, which {transform!r} turns into "
                f"{lower:g} and {upper:g}; give a larger maximum"
            )
        return cls(transform=transform, lower=lower, upper=upper)

    @classmethod
    def from_prepared(cls, data: PreparedData, column: str) -> NumberScaling:
        """The scaling of a prepared folder: its logarithm, its minimum and maximum.

        Raises:
            InputError: the folder has no such continuous column.
        """
        if column not in data.continuous:
            raise InputError(f"{data.path}: no continuous column {column!r}; prepare it with that")
        return cls(
            transform="log" if data.recipe.log else "none",
            lower=data.statistics.minimum[column],
            upper=data.statistics.maximum[column],
        )

    def apply(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
        """The numbers that a model takes; infinity where one is too large for them.

        Args:
            values: raw values, [n]; 0 where one is missing.
        """
        with np.errstate(over="ignore"):
            return self._scale(TRANSFORMS[self.transform](values)).astype(np.float32)

    def _scale(self, x: Floats) -> Floats:
        if self.lower is None or self.upper is None:
            return x
        if self.lower == self.upper:  # one value in all rows that `prepare` fitted on
            return np.where(x == 0, 0, 0.5)  # as NVTabular's NormalizeMinMax
        return (x - self.lower) / (self.upper - self.lower)


def scaling_of(entry: Mapping[str, Json]) -> NumberScaling:
    """Return the scaling that a continuous column's entry in a features file asks for.

    Args:
        entry: key -> value; `transform`, `minimum` and `maximum` count.

    Raises:
        InputError: a setting is unknown or no number, or one of the ends is missing.

    >>> scaling_of({"transform": "none", "minimum": 0, "maximum": 9})
    NumberScaling(transform='none', lower=0.0, upper=9.0)
    """
    transform = entry.get("transform", "signed_log")
    if not isinstance(transform, str) or transform not in TRANSFORMS:
        raise InputError(f"transform is {transform!r}; choose one of {', '.join(TRANSFORMS)}")
    ends = [entry.get(key) for key in ("minimum", "maximum")]
    for key, end in zip(("minimum", "maximum"), ends):
        if (end is None and key in entry) or (end is not None and not _is_finite(end)):
            raise InputError(f"{key} is {end!r}; give a number")
    if ends == [None, None]:
        return NumberScaling(transform=transform)
    if None in ends:
        raise InputError("has one of minimum and maximum; give both or neither")
    return NumberScaling.from_range(transform, *ends)


def _is_finite(value: Json) -> bool:
    return type(value) in (int, float) and is_finite(value)
