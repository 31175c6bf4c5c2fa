"""Settings of an online training."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from cowclip_merlin import choices
from cowclip_merlin.errors import InputError
from cowclip_merlin.settings import Settings, option
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.types import JsonObject

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
class OnlineSettings(Settings):
    """Settings of a model with growing tables and of its training.

    Raises:
        InputError: a setting is out of range, or it is not one of online training.
    """

    run: RunSettings = option(
        help="model, batch size and rates; its update must be lazy, and its epochs, warm-up, "
        "validation fraction and table layout do not apply"
    )
    capacity: int | None = option(
        None, "rows to reserve for each table", shown="enough for --max-rows, else 2^24", at_least=1
    )
    max_rows: int | None = option(
        None,
        "ids that may have a row; the ids not seen for longest lose theirs",
        shown="as many as --capacity allows",
        at_least=1,
    )
    absent: str = option(
        "trained",
        "what ids without a row read: the shared row of their field (trained), or zeros",
        choices=choices.ABSENT_ROWS,
    )
    admission_filter: str = option(
        "count", "how `admit` of the features file counts", choices=choices.ADMISSION_FILTERS
    )
    window: int = option(
        0, "events after which the counts for `admit` are halved; 0: never", at_least=0
    )

    lr_events: int | None = option(
        None, "events over which linear rates fall to --lr-floor", metavar="N", at_least=1
    )

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        if self.run.update != "lazy":
            raise InputError(
                f"update {self.run.update!r} also changes rows that are absent from the batch, "
                'which a growing table cannot track; use "lazy"'
            )
        if self.run.combiner != "mean":
            raise InputError(
                f"combiner {self.run.combiner!r}: the features file gives the combiner of a column"
            )
        if self.run.class_weight is not None:
            raise InputError(
                f"class_weight {self.run.class_weight!r} is for a run on a prepared folder; name a "
                "column of weights in the features file, as `weight`"
            )
        for name in ("pretrained_embeddings", "freeze_embeddings"):
            if getattr(self.run, name) is not None:
                raise InputError(
                    f"`{name}` is for a run on a prepared folder; a stream may start with such a "
                    "run, by `start`"
                )
        if self.run.reset_embeddings:
            raise InputError("reset_embeddings is for the epochs of a prepared folder; omit it")
        self._check_schedule()
        if self.run.effective_clip not in choices.kernel_clips():
            known = ", ".join(choices.kernel_clips())
            raise InputError(
                f"clip {self.run.effective_clip!r} does not take each row by itself, as growing "
                f"tables need; choose one of {known}"
            )
        if self.window and self.admission_filter != "count":
            raise InputError('window has no effect with the filter "probabilistic"; remove it')

    def _check_schedule(self) -> None:
        """Refuse schedules that need epochs or held-out rows, and a fall of unknown length."""
        schedule = self.run.lr_schedule
        if schedule not in choices.ONLINE_SCHEDULES:
            known = " or ".join(choices.ONLINE_SCHEDULES)
            raise InputError(
                f"lr_schedule is {schedule!r}, which needs the epochs of a prepared folder; a "
                f"stream has none: use {known}"
            )
        if schedule == "linear" and self.lr_events is None:
            raise InputError(
                "lr_schedule is 'linear', but a stream has no length; also set lr_events, "
                "the events over which the rates fall"
            )
        if schedule != "linear" and self.lr_events is not None:
            raise InputError(
                f"lr_events has no effect with lr_schedule {schedule!r}; remove it, or use linear"
            )

    def reserved_rows(self, num_fields: int) -> int:
        """Rows to reserve in each table, those of absent ids included."""
        if self.capacity is not None:
            return self.capacity
        return DEFAULT_CAPACITY if self.max_rows is None else self.max_rows + num_fields

    def as_dict(self) -> JsonObject:
        """Return plain values for JSON."""
        return asdict(self) | {"run": self.run.as_dict()}
