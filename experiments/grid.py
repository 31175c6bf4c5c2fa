"""The points of a sweep: a grid, and the neighbours of a point on it and beyond its ends."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cowclip_merlin.experiments.definitions import Experiment, ExperimentLine

FURTHER = 3
"""How many values an axis may go beyond each of its ends."""

Point = tuple[float, ...]
"""A value for each axis."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """What is varied, and how.

    Attributes:
        name: of the value.
        values: of the grid, in the file's order.
        factor: whether the base value is multiplied by them, or replaced.
    """

    name: str
    values: tuple[float, ...]
    factor: bool

    def ladder(self) -> list[float]:
        """The values in order, and more at both ends in the ratio of the last two there.

        >>> Axis(name="r", values=(1.0, 0.1), factor=False).ladder()
        [0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0]
        """
        inner = sorted(set(self.values))
        if len(inner) < 2:
            return inner
        return [*reversed(_further(*inner[:2])), *inner, *_further(inner[-1], inner[-2])]


def _further(end: float, before: float) -> list[float]:
    """Values beyond an end; none where one of the two is 0, which has no ratio."""
    if 0 in (end, before):
        return []
    ratio = end / before
    return [float(f"{end * ratio**step:.6g}") for step in range(1, FURTHER + 1)]


def axes(sweep: Experiment) -> list[Axis]:
    """What a sweep varies."""
    plain = [Axis(name=n, values=v, factor=False) for n, v in sweep.grid.items()]
    return plain + [Axis(name=n, values=v, factor=True) for n, v in sweep.grid_factors.items()]


def grid(sweep: Experiment) -> list[Point]:
    """All points of the file's grid."""
    return list(itertools.product(*(axis.values for axis in axes(sweep))))


def neighbours(sweep: Experiment, point: Point) -> list[Point]:
    """The points that differ from this one by a step on one axis.

    >>> from cowclip_merlin.experiments.definitions import load_experiment
    >>> neighbours(load_experiment("sweep_lr"), (4.0,))
    [(2.0,), (8.0,)]
    """
    found = []
    for place, axis in enumerate(axes(sweep)):
        ladder = axis.ladder()
        at = ladder.index(point[place])
        steps = ladder[max(at - 1, 0) : at] + ladder[at + 1 : at + 2]
        found += [(*point[:place], value, *point[place + 1 :]) for value in steps]
    return found


def label(sweep: Experiment, point: Point) -> str:
    """A point in words.

    >>> from cowclip_merlin.experiments.definitions import load_experiment
    >>> label(load_experiment("sweep_r"), (1.0, 3.0, 1.0, 0.1))
    'r 1, embedding_lr x3, dense_lr x1, l2 x0.1'
    """
    pairs = zip(axes(sweep), point, strict=True)
    return ", ".join(f"{axis.name} {'x' if axis.factor else ''}{value:g}" for axis, value in pairs)


def expand(sweep: Experiment, points: Sequence[Point] | None = None) -> Experiment:
    """The sweep as an experiment with one line for each point; without any, of its grid.

    >>> from cowclip_merlin.experiments.definitions import load_experiment
    >>> [line.label for line in expand(load_experiment("sweep_lr")).lines][:2]
    ['embedding_lr x0.25', 'embedding_lr x0.5']
    """
    points = grid(sweep) if points is None else points
    return replace(sweep, kind="runs", lines=tuple(_line(sweep, point) for point in points))


def _line(sweep: Experiment, point: Point) -> ExperimentLine:
    (line,) = sweep.lines
    pairs = list(zip(axes(sweep), point, strict=True))
    overrides = {axis.name: value for axis, value in pairs if not axis.factor}
    factors = {axis.name: value for axis, value in pairs if axis.factor}
    return replace(
        line,
        label=label(sweep, point),
        overrides={**line.overrides, **overrides},
        factors={**line.factors, **factors},
    )
