"""Settings of an online training."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from cowclip_merlin import choices
from cowclip_merlin.checks import one_of
from cowclip_merlin.errors import InputError
from cowclip_merlin.training.run_settings import RunSettings

DEFAULT_CAPACITY = 1 << 24
"""Rows to reserve without `max_rows` and `capacity`; memory is taken by rows in use only.

Linux does not reserve one table that is larger than the memory of the machine, so this is no more.
"""

FULL = (
    "the table is full: ids that were not seen for longest lose their rows; --max-rows or "
    "--capacity say how many ids may have one"
)
"""What to say when a table begins to drop ids."""


@dataclass(frozen=True, kw_only=True)
class OnlineSettings:
    """Settings of a model with growing tables and of its training.

    Attributes:
        run: model, batch size and rates; `update` must be "lazy". Its epochs, warm-up,
            validation fraction and table layout do not apply.
        capacity: rows to reserve for each table. None: enough for `max_rows`, or 2^24 rows.
        max_rows: ids that may have a row; the ids that were not seen for longest lose theirs
            first. None: as many as `capacity` allows.
        absent: what ids without a row read, one of `choices.ABSENT_ROWS`.
        admission_filter: how `admit` counts, one of `choices.ADMISSION_FILTERS`.
        window: events after which counted occurrences halve; 0 for never.

    Raises:
        InputError: a setting is out of range, or it is not one of online training.
    """

    run: RunSettings
    capacity: int | None = None
    max_rows: int | None = None
    absent: str = "trained"
    admission_filter: str = "count"
    window: int = 0

    def __post_init__(self) -> None:
        """Check the values."""
        if self.run.update != "lazy":
            raise InputError(
                f"update {self.run.update!r} also changes rows that are absent from the batch, "
                'which a growing table cannot track; use "lazy"'
            )
        if self.run.optimizer != "adam":
            raise InputError(f"optimizer {self.run.optimizer!r}: growing tables need adam")
        one_of("absent", self.absent, choices.ABSENT_ROWS)
        one_of("admission_filter", self.admission_filter, choices.ADMISSION_FILTERS)
        if self.run.effective_clip not in choices.kernel_clips():
            known = ", ".join(choices.kernel_clips())
            raise InputError(
                f"clip {self.run.effective_clip!r} does not take each row by itself, as growing "
                f"tables need; choose one of {known}"
            )
        if self.window and self.admission_filter != "count":
            raise InputError('window has no effect with the filter "probabilistic"; remove it')
        for name, least in {"capacity": 1, "max_rows": 1, "window": 0}.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name} is {value}; it must be at least {least}")

    def reserved_rows(self, num_fields: int) -> int:
        """Rows to reserve in each table, those of absent ids included."""
        if self.capacity is not None:
            return self.capacity
        return DEFAULT_CAPACITY if self.max_rows is None else self.max_rows + num_fields

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self) | {"run": self.run.as_dict()}
