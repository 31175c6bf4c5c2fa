"""Make random rows like Criteo's, and models for them, for the benchmarks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cowclip_merlin.bench.settings import CONTINUOUS, NUM_FIELDS
from cowclip_merlin.loading import ColumnArrays
from cowclip_merlin.loading.column_arrays import IdLayout
from cowclip_merlin.types import Array

if TYPE_CHECKING:
    from cowclip_merlin.models import CTRModel


def criteo_fields(vocabulary: int) -> dict[str, int]:
    """Return 26 fields and their numbers of rows, distributed as in Criteo's log.

    A few fields have nearly all ids; every field has at least 4.

    Args:
        vocabulary: ids of all fields together, of a `vocabulary_option`.

    >>> sum(criteo_fields(1000).values())
    1000
    >>> {*criteo_fields(104).values()}
    {4}
    """
    weights = 0.6 ** np.arange(NUM_FIELDS)
    rows = np.maximum(4, (vocabulary * weights / weights.sum()).astype(int))
    rows[0] += vocabulary - rows.sum()
    for i in range(NUM_FIELDS - 1):  # small fields get ids from the next fields
        lacking = max(0, 4 - rows[i])
        rows[i : i + 2] += lacking, -lacking
    return {f"C{i + 1}": int(n) for i, n in enumerate(rows)}


def random_rows(
    rows: int, fields: dict[str, int], *, seed: int = 0, multi_values: int = 0
) -> ColumnArrays:
    """Make random rows with power-law ids.

    Args:
        rows: number of rows.
        fields: field -> number of ids.
        seed: seed of all random numbers.
        multi_values: mean number of ids of a row in each field, in lists of 1 to
            2 * multi_values - 1 ids; 0: one id each, without lists.

    >>> random_rows(2, {"a": 9, "b": 9}, multi_values=1).lengths.tolist()
    [[1, 1], [1, 1]]
    """
    rng = np.random.default_rng(seed)
    if multi_values:
        return _random_lists(rows, fields, multi_values, rng)
    return ColumnArrays(
        ids=np.stack([_power_law(n, rows, rng) for n in fields.values()], axis=1),
        continuous=rng.random((rows, CONTINUOUS), np.float32),
        label=(rng.random(rows) < 0.25).astype(np.float32),
    )


def _power_law(n: int, count: int, rng: np.random.Generator) -> Array:
    """Draw ids below n: (n + 1) ** u is a power law of exponent 1 over the ranks 1 to n."""
    return ((n + 1.0) ** rng.random(count)).astype(np.int32) - 1


def _random_lists(
    rows: int, fields: dict[str, int], mean: int, rng: np.random.Generator
) -> ColumnArrays:
    layout = IdLayout(len(fields), tuple(range(len(fields))))
    columns = []
    for n in fields.values():
        lengths = rng.integers(1, 2 * mean, rows, dtype=np.int32)
        columns.append((_power_law(n, int(lengths.sum()), rng), lengths))
    ids, lengths = layout.join(columns)
    return ColumnArrays(
        ids=ids,
        continuous=rng.random((rows, CONTINUOUS), np.float32),
        label=(rng.random(rows) < 0.25).astype(np.float32),
        lengths=lengths,
        layout=layout,
    )


def random_model(
    model: str, fields: dict[str, int], *, multi_values: int = 0, **settings: Any
) -> CTRModel:
    """Build a model for these fields and 13 numbers; see `Architecture`.

    With `multi_values`, all fields have lists, whose embeddings are averaged.
    """
    from cowclip_merlin import models
    from cowclip_merlin.workflows.nvtabular_graph import Statistics
    from cowclip_merlin.workflows.prepared.folder import merlin_schema
    from cowclip_merlin.workflows.raw.log_format import LogFormat

    numbers = tuple(f"I{i + 1}" for i in range(CONTINUOUS))
    log_format = LogFormat(
        kind="table",
        label="label",
        categorical=tuple(fields),
        continuous=numbers,
        multi=dict.fromkeys(fields, "|") if multi_values else {},
    )
    statistics = Statistics(cardinalities=fields, minimum={}, maximum={})
    return models.MODELS[model](merlin_schema(log_format, statistics), **({"seed": 1} | settings))
