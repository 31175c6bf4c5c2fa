"""Columns that a run of online training gets at a restart, at the end of their list.

A snapshot never changes. It notes its columns, and whoever loads it gives the others their first
values: no rows, and dense weights of 0. So a restart from the same snapshot always begins with the
same model, and so does a server. Messages from before lack a new column, so it is `optional`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.tables.snapshot import load_snapshot, numbers
from cowclip_merlin.types import Array, Json, JsonObject, Variable

if TYPE_CHECKING:
    from cowclip_merlin.models.more_columns import GrownWeight, MoreColumns

COLUMNS = "columns"
"""Name of the columns of a model in the `extra` of a snapshot, and in a message to servers."""


def noted(features: LogFeatures) -> JsonObject:
    """Return what the `extra` of a snapshot says of its columns."""
    return {COLUMNS: list(features.inputs)}


def held(folder: Path) -> list[str] | None:
    """Return the columns of the newest snapshot that can be read; None if there is none."""
    for number in sorted(numbers(folder), reverse=True):
        with suppress(InputError):  # it is set aside later
            return load_snapshot(folder, number, wanted=lambda _: False).extra.get(COLUMNS)
    return None


def lacking_in(extra: Json, features: LogFeatures) -> list[str]:
    """Return the columns that a snapshot does not have, by its `extra`."""
    return [name for name in features.inputs if name not in extra[COLUMNS]]


def more_of(features: LogFeatures, lacking: Collection[str]) -> MoreColumns:
    """Return how many columns of each kind a state lacks."""
    from cowclip_merlin.models.more_columns import MoreColumns

    return MoreColumns(
        categorical=sum(column.name in lacking for column in features.categorical),
        continuous=sum(column.name in lacking for column in features.continuous),
    )


def grown_variables(
    state: Mapping[str, Array],
    variables: Mapping[str, Variable],
    weights: Mapping[str, GrownWeight],
) -> dict[str, Array]:
    """Return the values of variables, from a state of a model with fewer columns.

    A variable that the state does not have is not in the result.

    Args:
        state: values by name; equal names but for their numbers are those of one list.
        variables: of the model with all columns, likewise.
        weights: how each variable comes from its saved value.

    Raises:
        InputError: the state is of another model.
    """
    found, seen = {}, Counter[str]()
    for name, variable in variables.items():
        if weights[name].is_new:
            found[name] = variable.numpy()
            continue
        before, kind = name, name.rstrip("0123456789")
        if kind != name:
            before, seen[kind] = f"{kind}{seen[kind]}", seen[kind] + 1
        if before in state:
            found[name] = weights[name].of(state[before], tuple(variable.shape))
    return found
