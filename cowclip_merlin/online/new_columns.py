"""Columns that a run of online training gets at a restart, at the end of their list.

A snapshot never changes. It notes which of the added columns it has, and whoever loads it gives the
others their first values: no rows, and dense weights of 0. So a restart from the same snapshot
always begins with the same model, and so does a server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from cowclip_merlin.online.events.features import AddedColumn, LogFeatures
from cowclip_merlin.tables.growing_table import with_more_fields
from cowclip_merlin.types import Array, Json, JsonObject, Variable

if TYPE_CHECKING:
    from cowclip_merlin.models.more_columns import GrownWeight, MoreColumns

ADDED = "added"
"""Name of the added columns in the configuration of a run, and in the `extra` of a snapshot."""


def with_added(
    columns: LogFeatures, before: LogFeatures, end: Callable[[], tuple[int, ...]]
) -> LogFeatures:
    """Return the columns of a features file with what the run knows of those that were added.

    Args:
        columns: of the features file.
        before: those of the run at its start before.
        end: returns the end of the log.
    """
    new = [name for name in columns.inputs if name not in before.inputs]
    until = end() if new else ()
    added = [AddedColumn(name=name, until=until) for name in new]
    return replace(columns, added=(*before.added, *added))


def noted(features: LogFeatures) -> JsonObject:
    """Return what the `extra` of a snapshot says of added columns: nothing if there are none."""
    names = [column.name for column in features.added]
    return {ADDED: names} if names else {}


def lacking_in(extra: Json, features: LogFeatures) -> list[str]:
    """Return the added columns that a snapshot does not have, by its `extra`."""
    known = extra.get(ADDED, []) if isinstance(extra, dict) else []
    return [column.name for column in features.added if column.name not in known]


def more_of(features: LogFeatures, lacking: Collection[str]) -> MoreColumns:
    """Return how many columns of each kind a state lacks."""
    from cowclip_merlin.models.more_columns import MoreColumns

    return MoreColumns(
        categorical=sum(column.name in lacking for column in features.categorical),
        continuous=sum(column.name in lacking for column in features.continuous),
    )


def grown_table(state: Mapping[str, Array], features: LogFeatures) -> dict[str, Array]:
    """Return the state of a growing table, with the fields of all columns.

    Args:
        state: of the table, or the part of it that servers need.
        features: all columns.
    """
    return with_more_fields(state, len(features.tables), features.table_of_column)


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
