"""Define an experiment on a log sorted by time: several lines, each with rules of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

NEVER = "never"
"""A serving copy that is never synced, or an id that never expires."""

PUBLISHED = ("auc", "gain")
"""Measures that a line may give published numbers for: AUC in %, gain in points."""


@dataclass(frozen=True, kw_only=True)
class ReplayLine:
    """One line of an experiment that replays a log.

    Lines with equal rules are scored in the same replay.

    Attributes:
        label: text of the row or the point.
        sync: event time between two syncs of the serving copy that is scored, such as "1h", or
            "never".
        admit: occurrences after which an id gets a row, for all columns; None: as in the features
            file.
        ttl: event time without an occurrence after which an id loses its row, for all columns, or
            "never"; None: as in the features file.
        published: measure -> published number; see `PUBLISHED`.
        note: note for readers about the published number.
    """

    label: str
    sync: str
    admit: int | None = None
    ttl: str | None = None
    published: Mapping[str, float] = field(default_factory=dict)
    note: str | None = None


@dataclass(frozen=True, kw_only=True)
class CollisionLine:
    """One line of an experiment that hashes ids into buckets.

    Attributes:
        label: text of the row or the curve.
        load: distinct ids of a column per bucket; 0 for no hashing.
        epochs: passes over the training rows.
        columns: columns to hash; empty for all categorical columns.
    """

    label: str
    load: float
    epochs: int = 10
    columns: tuple[str, ...] = ()


LOG_KINDS: Mapping[str, type[ReplayLine | CollisionLine]] = {
    "sync": ReplayLine,
    "rules": ReplayLine,
    "collisions": CollisionLine,
}
"""Kind of an experiment on a log -> class of its lines. "sync" compares sync intervals, "rules"
what the rows kept cost, "collisions" what shared rows cost."""


@dataclass(frozen=True, kw_only=True)
class LogExperiment:
    """An experiment on a log, as read from a YAML file.

    Attributes:
        name: name of the file.
        title: title in one line.
        claim: the paper's claim, or the purpose of the experiment.
        kind: one of `LOG_KINDS`.
        lines: rows of the table, of the kind's class.
        corner: heading of the first column.
        reference: label of the line that all lines are compared with.
        caption: text below the figure.
        notes: text below the table.
        source: name of the user's file; empty for the experiments of this package.
    """

    name: str
    title: str
    claim: str
    kind: str
    lines: tuple[ReplayLine | CollisionLine, ...]
    reference: str
    corner: str = "line"
    caption: str = ""
    notes: tuple[str, ...] = ()
    source: str = ""

    @property
    def cli_name(self) -> str:
        """Its name on the command line."""
        return self.source or self.name
