"""Compute the points of a sweep: its grid, and neighbors of a point, also beyond the grid."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cowclip_merlin.experiments.definitions import Experiment, ExperimentLine

STEPS_BEYOND = 3
"""How many values an axis may go beyond each of its ends."""

Point = tuple[float, ...]
"""One value per axis."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One hyper-parameter that a sweep varies.

    Attributes:
        name: name of the hyper-parameter.
        values: values of the grid, in the file's order.
        factor: whether the values multiply the base value, or replace it.
    """

    name: str
    values: tuple[float, ...]
    factor: bool

    def extended_values(self) -> list[float]:
        """Sort the values, and extend both ends by the ratio of the last two values there.

        >>> Axis(name="r", values=(1.0, 0.1), factor=False).extended_values()
        [0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0]
        """
        inner = sorted(set(self.values))
        if len(inner) < 2:
            return inner
        return [*reversed(_beyond(*inner[:2])), *inner, *_beyond(inner[-1], inner[-2])]


def _beyond(end: float, before: float) -> list[float]:
    """Return the values beyond an end; empty if one of the two is 0, which has no ratio."""
    if 0 in (end, before):
        return []
    ratio = end / before
    return [float(f"{end * ratio**step:.6g}") for step in range(1, STEPS_BEYOND + 1)]


def sweep_axes(sweep: Experiment) -> list[Axis]:
    """Return the axes of a sweep."""
    plain = [Axis(name=n, values=v, factor=False) for n, v in sweep.grid.items()]
    return plain + [Axis(name=n, values=v, factor=True) for n, v in sweep.grid_factors.items()]


def grid_points(sweep: Experiment) -> list[Point]:
    """Return all points of the file's grid."""
    return list(itertools.product(*(axis.values for axis in sweep_axes(sweep))))


def neighbors(sweep: Experiment, point: Point) -> list[Point]:
    """Return the points that differ from this one by one step on one axis.

    >>> from cowclip_merlin.experiments.definitions import load_experiment
    >>> neighbors(load_experiment("sweep_lr"), (4.0,))
    [(2.0,), (8.0,)]
    """
    found = []
    for index, axis in enumerate(sweep_axes(sweep)):
        values = axis.extended_values()
        at = values.index(point[index])
        steps = values[max(at - 1, 0) : at] + values[at + 1 : at + 2]
        found += [(*point[:index], value, *point[index + 1 :]) for value in steps]
    return found


def point_label(sweep: Experiment, point: Point) -> str:
    """Return the label of a point's line.

    >>> from cowclip_merlin.experiments.definitions import load_experiment
    >>> point_label(load_experiment("sweep_r"), (1.0, 3.0, 1.0, 0.1))
    'r 1, embedding_lr x3, dense_lr x1, l2 x0.1'
    """
    pairs = zip(sweep_axes(sweep), point, strict=True)
    return ", ".join(f"{axis.name} {'x' if axis.factor else ''}{value:g}" for axis, value in pairs)


def expand_sweep(sweep: Experiment, points: Sequence[Point] | None = None) -> Experiment:
    """Convert the sweep to an experiment with one line per point; by default all grid points.

    >>> from cowclip_merlin.experiments.definitions import load_experiment
    >>> [line.label for line in expand_sweep(load_experiment("sweep_lr")).lines][:2]
    ['embedding_lr x0.25', 'embedding_lr x0.5']
    """
    points = grid_points(sweep) if points is None else points
    return replace(sweep, kind="runs", lines=tuple(_line(sweep, point) for point in points))


def _line(sweep: Experiment, point: Point) -> ExperimentLine:
    (line,) = sweep.lines
    pairs = list(zip(sweep_axes(sweep), point, strict=True))
    overrides = {axis.name: value for axis, value in pairs if not axis.factor}
    factors = {axis.name: value for axis, value in pairs if axis.factor}
    return replace(
        line,
        label=point_label(sweep, point),
        overrides={**line.overrides, **overrides},
        factors={**line.factors, **factors},
    )
