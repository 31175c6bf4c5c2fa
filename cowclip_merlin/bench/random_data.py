"""Make random rows like Criteo's, and models for them, for the benchmarks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import ColumnArrays

if TYPE_CHECKING:
    from cowclip_merlin.models import CTRModel

NUM_FIELDS, CONTINUOUS = 26, 13
LEAST_VOCABULARY = 4 * NUM_FIELDS


def criteo_fields(vocabulary: int) -> dict[str, int]:
    """Return 26 fields and their numbers of rows, distributed as in Criteo's log.

    A few fields have nearly all ids; every field has at least 4.

    Args:
        vocabulary: ids of all fields together.

    Raises:
        InputError: if there are too few ids for the fields, or too many for 32 bits.

    >>> sum(criteo_fields(1000).values())
    1000
    >>> {*criteo_fields(LEAST_VOCABULARY).values()}
    {4}
    """
    check_vocabulary_size("vocabulary", vocabulary)
    weights = 0.6 ** np.arange(NUM_FIELDS)
    rows = np.maximum(4, (vocabulary * weights / weights.sum()).astype(int))
    rows[0] += vocabulary - rows.sum()
    for i in range(NUM_FIELDS - 1):  # small fields get ids from the next fields
        lacking = max(0, 4 - rows[i])
        rows[i : i + 2] += lacking, -lacking
    return {f"C{i + 1}": int(n) for i, n in enumerate(rows)}


def check_vocabulary_size(option: str, *vocabularies: int) -> None:
    """Refuse vocabularies that the fields of `criteo_fields` cannot share.

    Raises:
        InputError: if a vocabulary is too small, or too large for 32-bit ids.

    >>> check_vocabulary_size("--ids", 1000, 3)
    Traceback (most recent call last):
    ...
    cowclip_merlin.errors.InputError: --ids is 3; give 104 or more, below 2**31
    """
    for vocabulary in vocabularies:
        if not LEAST_VOCABULARY <= vocabulary < 2**31:
            raise InputError(
                f"{option} is {vocabulary}; give {LEAST_VOCABULARY} or more, below 2**31"
            )


def random_rows(rows: int, fields: dict[str, int], *, seed: int = 0) -> ColumnArrays:
    """Make random rows with power-law ids."""
    rng = np.random.default_rng(seed)
    # (n + 1) ** u is a power law of exponent 1 over the ranks 1 to n.
    ids = [((n + 1.0) ** rng.random(rows)).astype(np.int32) - 1 for n in fields.values()]
    return ColumnArrays(
        ids=np.stack(ids, axis=1),
        continuous=rng.random((rows, CONTINUOUS), np.float32),
        label=(rng.random(rows) < 0.25).astype(np.float32),
    )


def random_model(model: str, fields: dict[str, int], **settings: Any) -> CTRModel:
    """Build a model for these fields and 13 numbers; see `Architecture`."""
    from cowclip_merlin import models
    from cowclip_merlin.workflows.nvtabular_graph import Statistics
    from cowclip_merlin.workflows.prepared.folder import merlin_schema
    from cowclip_merlin.workflows.raw.log_format import LogFormat

    numbers = tuple(f"I{i + 1}" for i in range(CONTINUOUS))
    log_format = LogFormat(
        kind="table", label="label", categorical=tuple(fields), continuous=numbers
    )
    statistics = Statistics(cardinalities=fields, minimum={}, maximum={})
    return models.MODELS[model](merlin_schema(log_format, statistics), **({"seed": 1} | settings))
