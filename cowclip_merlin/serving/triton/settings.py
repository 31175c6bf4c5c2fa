"""Settings of a model repository."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cowclip_merlin.checks import check_at_least_one
from cowclip_merlin.errors import InputError


@dataclass(frozen=True, kw_only=True)
class RepositorySettings:
    """How Triton names and batches a model.

    Attributes:
        model_name: name of the model, of letters, digits, `_`, `-` and `.`.
        model_version: number of its version. Triton serves the largest one.
        max_batch_size: rows of the largest batch, and of the largest request.

    Raises:
        InputError: if a name is not allowed or a number is below 1.

    >>> RepositorySettings(model_name="../ctr")
    Traceback (most recent call last):
    ...
    cowclip_merlin.errors.InputError: `model_name` '../ctr': use letters, digits, _, - and .
    """

    model_name: str = "ctr"
    model_version: int = 1
    max_batch_size: int = 4096

    def __post_init__(self) -> None:
        """Reject names and numbers that Triton does not accept."""
        if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*", self.model_name):
            raise InputError(f"`model_name` {self.model_name!r}: use letters, digits, _, - and .")
        counts = {"`model_version`": self.model_version, "`max_batch_size`": self.max_batch_size}
        check_at_least_one(counts)
        for option, count in counts.items():
            if count >= 2**31:
                raise InputError(f"{option} is {count}; give less than {2**31}")
