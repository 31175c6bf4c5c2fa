"""What is new in rows to score: unknown values, missing ones, and numbers outside their range."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin.errors import InputError
from cowclip_merlin.workflows.prepared.changes import (
    FEW,
    LOOKED_AT,
    Remedy,
    ValueCounts,
    warn_of_changes,
)
from cowclip_merlin.workflows.prepared.counts import SPECIAL

if TYPE_CHECKING:
    import pyarrow as pa

    from cowclip_merlin.loading import ColumnArrays
    from cowclip_merlin.types import Array, ArrowColumn
    from cowclip_merlin.workflows import PreparedData


class NewValues:
    """Counts of the rows of one call of `score`, compared with the rows of the prepared folder.

    Args:
        data: the folder that the run was trained on.
        allowed: columns that may be far more unknown than in its test rows.

    Raises:
        InputError: if there is no such column.
    """

    def __init__(self, data: PreparedData, allowed: Sequence[str] = ()) -> None:
        for name in allowed:
            if name not in data.categorical:
                raise InputError(
                    f"`allow_unknown`: {data.path} has no categorical column {name!r}; it has "
                    f"{', '.join(data.categorical)}"
                )
        self._data, self._allowed = data, allowed
        layout = data.log_format.without_label()
        self._counts = ValueCounts(layout, ranges=data.statistics, log=data.recipe.log)
        self._values, self._unknown = np.zeros((2, len(data.categorical)), np.int64)
        self._texts: dict[str, dict[str, None]] = {name: {} for name in data.categorical}

    @property
    def unknown(self) -> dict[str, float]:
        """Categorical column -> share of its values that are unknown; missing ones do not count."""
        shares = self._unknown / np.maximum(self._values, 1)
        return dict(zip(self._data.categorical, shares.tolist(), strict=True))

    def add(self, table: pa.Table, columns: ColumnArrays) -> None:
        """Count some rows.

        Args:
            table: the rows with the columns of `staged_columns`.
            columns: the same rows with ids.
        """
        self._counts.add(table)
        for j, name in enumerate(self._data.categorical):
            ids = columns.ids[:, j] if columns.layout is None else columns.column(j)[0]
            unknown = ids == SPECIAL["oov"]
            self._values[j] += np.count_nonzero(ids != SPECIAL["null"])
            self._unknown[j] += np.count_nonzero(unknown)
            known_texts = self._texts[name]
            if len(known_texts) < LOOKED_AT and unknown.any():
                known_texts |= dict.fromkeys(_texts(table[name], unknown))

    def check(self) -> None:
        """Check that no column is far more unknown than in the test rows, and log what changed.

        It is if less than half as large a share of its values is known. There must also be 20
        different unknown values, or one that only looks otherwise than a known one. Without test
        rows, only the latter is an error.

        Raises:
            InputError: if one is, and it is not allowed.
        """
        baseline = self._data.baseline
        for j, (name, share) in enumerate(self.unknown.items()):
            texts, before = list(self._texts[name]), baseline.unknown_share(name)
            of_test = "and there are no test rows to compare with"
            if before is not None:
                of_test = f"in the test rows {before:.1%}"
            told = f"{share:.1%} of the values are unknown, {of_test}"
            if baseline.far_more_unknown(name, share) and name not in self._allowed:
                remedy = Remedy.of(texts, self._data, name)
                if remedy.same_value or (before is not None and len(texts) >= FEW):
                    raise InputError(
                        f"column {name!r}: {told}: {remedy.text}; `allow_unknown` {name} scores "
                        "the rows as they are"
                    )
            # Of few values, such as countries, all are: but not one user of many candidates.
            none_known = share == 1 and len(texts) > 1 and self._values[j] >= FEW
            if baseline.more_unknown(name, share) and (len(texts) >= FEW or none_known):
                logging.getLogger(__name__).warning("warning: column %r: %s", name, told)
        warn_of_changes(self._counts, self._data)


def _texts(column: ArrowColumn, which: Array) -> list[str]:
    """Return the different texts of some values of a column, or of its lists."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = pc.list_flatten(column) if pa.types.is_list(column.type) else column
    found = values.filter(pa.array(which)).unique()
    return found.cast(pa.string()).to_pylist()
