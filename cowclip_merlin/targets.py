"""The targets of a model: what each of its outputs predicts.

The labels of a row with several targets may be missing, all but one. In arrays, a missing label is
NaN. The first target decides which epoch or trial is the best: by its AUC, or by its root mean
squared error if it is a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from cowclip_merlin.errors import InputError
from cowclip_merlin.types import Array

Scales: TypeAlias = "Mapping[str, Sequence[float]]"
"""Label that is a number -> mean and spread (standard deviation) of the training rows.

A model computes numbers in units of their spread, so that no loss drowns the others. What it
returns are the numbers themselves. Without an entry, these are 0 and 1.
"""


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


def means_and_spreads(targets: Sequence[Target], scales: Scales) -> tuple[list[float], list[float]]:
    """Return the mean and the spread of each target; 0 and 1 for a label of 0 and 1.

    >>> means_and_spreads(targets_of(["click", "sec"], ["sec"]), {"sec": (60.0, 45.0)})
    ([0.0, 60.0], [1.0, 45.0])
    """
    found = [scales.get(name, (0.0, 1.0)) for name, _ in targets]
    return [mean for mean, _ in found], [spread for _, spread in found]


def only_clicks(targets: Sequence[Target]) -> bool:
    """Whether the only target is a label of 0 and 1; then arrays have no axis of targets.

    >>> only_clicks([Target("y")]), only_clicks([Target("price", True)])
    (True, False)
    """
    return len(targets) == 1 and not targets[0].regression


def check_targets(labels: Sequence[str], regression: Sequence[str]) -> None:
    """Check that each number is a label.

    Raises:
        InputError: if one is not.
    """
    for name in regression:
        if name not in labels:
            raise InputError(
                f"`regression` {name!r} is no label; add it to `label` {','.join(labels)}"
            )


def check_esmm(targets: Sequence[Target]) -> None:
    """Check that ESMM can predict these targets.

    Raises:
        InputError: if they are not two labels of 0 and 1.
    """
    if len(targets) != 2 or any(target.regression for target in targets):
        raise InputError(
            "`multi_task` esmm needs two labels of 0 and 1, such as click and purchase, but has "
            f"{described(targets)}; use shared_bottom or mmoe"
        )


def described(targets: Sequence[Target]) -> str:
    """Name targets in an error.

    >>> described([Target("y"), Target("sec", True)])
    'y, sec (a number)'
    """
    return ", ".join(f"{n} (a number)" if regression else n for n, regression in targets)


def kinds_of(targets: Sequence[Target]) -> dict[str, str]:
    """Map each target to what its label is, for JSON; one of 0 and 1 alone needs no words.

    >>> kinds_of([Target("y"), Target("t", True)]), kinds_of([Target("y")])
    ({'y': 'binary', 't': 'regression'}, {})
    """
    if only_clicks(targets):
        return {}
    return {name: "regression" if regression else "binary" for name, regression in targets}


def served_names(targets: Sequence[Target]) -> list[str]:
    """Return what a served model calls its outputs: the labels, or what one label's is.

    >>> served_names([Target("y")]), served_names([Target("y"), Target("sec", True)])
    (['probability'], ['y', 'sec'])
    """
    return [kind_of(targets[0])] if len(targets) == 1 else [name for name, _ in targets]


def kind_of(target: Target) -> str:
    """Return what an output is: a "probability", or a "prediction" of a number."""
    return "prediction" if target.regression else "probability"


def refuse_several(what: str, targets: Sequence[Target], remedy: str) -> None:
    """Refuse other targets than one of 0 and 1.

    Args:
        what: the command or function.
        targets: the targets.
        remedy: what the user can do.

    Raises:
        InputError: if there are several, or one is a number.
    """
    if not only_clicks(targets):
        names = ", ".join(name for name, _ in targets)
        raise InputError(f"{what} takes one label of 0 and 1, but the data has {names}; {remedy}")


def refuse_number_first(what: str, targets: Sequence[Target]) -> None:
    """Refuse targets whose first one is a number, where its AUC decides.

    Args:
        what: the command or function.
        targets: the targets.

    Raises:
        InputError: if it is a number.
    """
    if targets[0].regression:
        raise InputError(
            f"{what} follows the AUC of the first label, but {targets[0].name!r} is a number; "
            "prepare with a label of 0 and 1 first"
        )


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
