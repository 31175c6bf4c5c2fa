"""The targets of a model: what each of its outputs predicts.

The labels of a row with several targets may be missing, all but one. In arrays, a missing label is
NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cowclip_merlin.errors import InputError
from cowclip_merlin.types import Array


class Target(NamedTuple):
    """What one output of a model predicts.

    Attributes:
        name: name of the label's column.
        regression: whether the label is a number, and the loss the squared error; else it is
            0 or 1, and the loss the binary cross-entropy.
    """

    name: str
    regression: bool = False


def targets_of(labels: Sequence[str], regression: Sequence[str]) -> tuple[Target, ...]:
    """Return the targets with these labels.

    >>> targets_of(["click", "seconds"], ["seconds"])[1]
    Target(name='seconds', regression=True)
    """
    return tuple(Target(name, name in regression) for name in labels)


def check_targets(labels: Sequence[str], regression: Sequence[str]) -> None:
    """Check that the first target is a 0/1 label, which early stopping follows.

    Raises:
        InputError: if it is not, or if a number is no label.
    """
    for name in regression:
        if name not in labels:
            raise InputError(
                f"`regression` {name!r} is no label; add it to `label` {','.join(labels)}"
            )
    if labels and labels[0] in regression:
        raise InputError(
            f"`regression`: {labels[0]!r} is the first label, which must be of 0 and 1, because "
            "early stopping and the click rate follow it; give such a label before it"
        )


def check_esmm(targets: Sequence[Target]) -> None:
    """Check that ESMM can predict these targets.

    Raises:
        InputError: if they are not two labels of 0 and 1.
    """
    if len(targets) != 2 or any(target.regression for target in targets):
        names = ", ".join(f"{n} (a number)" if regression else n for n, regression in targets)
        raise InputError(
            "`multi_task` esmm needs two labels of 0 and 1, such as click and purchase, but has "
            f"{names}; use shared_bottom or mmoe"
        )


def kinds_of(targets: Sequence[Target]) -> dict[str, str]:
    """Map each of several targets to what its label is, for JSON; one target needs no words.

    >>> kinds_of([Target("y"), Target("t", True)]), kinds_of([Target("y")])
    ({'y': 'binary', 't': 'regression'}, {})
    """
    if len(targets) == 1:
        return {}
    return {name: "regression" if regression else "binary" for name, regression in targets}


def served_names(targets: Sequence[Target]) -> list[str]:
    """Return what a served model calls its outputs: the labels, or one probability.

    >>> served_names([Target("y")]), served_names([Target("y"), Target("sec", True)])
    (['probability'], ['y', 'sec'])
    """
    return ["probability"] if len(targets) == 1 else [name for name, _ in targets]


def refuse_several(what: str, targets: Sequence[Target], remedy: str) -> None:
    """Refuse several targets where only one is known.

    Args:
        what: the command or function.
        targets: the targets.
        remedy: what the user can do.

    Raises:
        InputError: if there are several.
    """
    if len(targets) > 1:
        names = ", ".join(name for name, _ in targets)
        raise InputError(f"{what} takes one label, but the data has {names}; {remedy}")


def columns_of_targets(
    labels: Array, targets: Sequence[Target]
) -> Iterator[tuple[Target, npt.NDArray[np.bool_], Array]]:
    """Yield each target, the rows that have its label, bool [n], and these labels.

    Args:
        labels: [n, T].
        targets: of the columns.

    >>> found = columns_of_targets(np.array([[1.0, 7.5], [0.0, np.nan]]), targets_of("ab", "b"))
    >>> [(target.name, labels.tolist()) for target, _, labels in found]
    [('a', [1.0, 0.0]), ('b', [7.5])]
    """
    for column, target in enumerate(targets):
        known = ~np.isnan(labels[:, column])
        yield target, known, labels[known, column]
