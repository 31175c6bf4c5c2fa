"""Columns that are made of others: in rows that a program sends, and in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cowclip_merlin.types import JsonObject
from cowclip_merlin.workflows.raw.columns import Buckets, Time
from cowclip_merlin.workflows.raw.log_format import LogFormat
from cowclip_merlin.workflows.raw.values.value_text import Damage


def with_made_columns(
    rows: Sequence[JsonObject], layout: LogFormat
) -> tuple[Sequence[JsonObject], dict[int, str]]:
    """Return events with the columns that `prepare` makes of others, as of a date its hour.

    Args:
        rows: events: column of the log -> value.
        layout: the columns of the log.

    Returns:
        The events, and what is wrong with some: number of the event -> reason.
    """
    import pyarrow as pa

    columns = [each for each in layout.sources if isinstance(each, Time | Buckets)]
    if not columns:
        return rows, {}
    found, wrong = [dict(row) for row in rows], {}
    for column in columns:
        values = []
        for i, row in enumerate(rows):
            if column.name not in row:
                wrong.setdefault(i, f"no {column.name!r}; give null for a missing value")
            try:
                values.append(column.of_json(row.get(column.name)))
            except Damage as error:
                wrong.setdefault(i, str(error))
                values.append(None)
        given = pa.chunked_array([pa.array(values, column.json_type)])
        checked, right = column.check(given, f"column {column.name!r}")
        for i in [] if right is None else np.flatnonzero(~right).tolist():
            wrong.setdefault(i, column.damage(rows[i].get(column.name)))
        for name, made in (column.parts(checked) or {column.name: checked}).items():
            for row, value in zip(found, made.to_pylist(), strict=True):
                row[name] = value
    return found, wrong


def made_values(layout: LogFormat) -> dict[str, str]:
    """Return which values the columns have that `prepare` makes of others, in words.

    >>> time = {"time": "at", "categorical": ("user", "at_hour", "at_weekday")}
    >>> made_values(LogFormat(kind="table", label="y", **time))
    {'at_hour': 'hour of at, 0 to 23', 'at_weekday': 'weekday of at, monday to sunday'}
    """
    return {name: words for each in layout.sources for name, words in each.made_values.items()}
