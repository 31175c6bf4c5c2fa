"""Select the rows and ids of a data set that a run uses."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

from cowclip_merlin.errors import InputError
from cowclip_merlin.workflows import PreparedData

SAMPLE_SEED = 20220413


@dataclass(frozen=True, kw_only=True)
class DataVariant:
    """A subset of a data set; by default all of it.

    Attributes:
        fraction: share of the rows to keep, in both splits; a seeded choice.
        keep_top: number of ids to keep per field, the most frequent ones; None: all.
        min_count: keep ids that occur at least this often in the training rows; None: once.

    Raises:
        InputError: if a value is out of range.

    >>> str(DataVariant(fraction=0.5, keep_top=3))
    'rows x 0.5, top 3 ids'
    """

    fraction: float = 1.0
    keep_top: int | None = None
    min_count: int | None = None

    def __post_init__(self) -> None:
        """Reject values that would keep nothing."""
        if not 0 < self.fraction <= 1:
            raise InputError(f"`scale` is {self.fraction:g}; use a share above 0, at most 1")
        for name in ("keep_top", "min_count"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; it must be at least 1")

    def __str__(self) -> str:
        """Return the changes as text; empty for the whole data set."""
        parts = [f"rows x {self.fraction:g}"] if self.fraction < 1 else []
        parts += [f"top {self.keep_top} ids"] if self.keep_top is not None else []
        parts += [f"ids seen {self.min_count} times"] if self.min_count is not None else []
        return ", ".join(parts)

    def fingerprint(self, data: PreparedData) -> str:
        """Return the fingerprint of the subset; for all of the data, that of the data."""
        if not str(self):
            return data.fingerprint
        whole = json.dumps([data.fingerprint, asdict(self), SAMPLE_SEED], sort_keys=True)
        return hashlib.sha256(whole.encode()).hexdigest()
