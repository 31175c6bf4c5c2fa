"""Settings of a model repository."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cowclip_merlin.errors import InputError
from cowclip_merlin.settings import Settings, option


@dataclass(frozen=True, kw_only=True)
class RepositorySettings(Settings):
    """How Triton names and batches a model. It serves the largest version.

    Raises:
        InputError: if a name is not allowed or a number is below 1.

    >>> RepositorySettings(model_name="../ctr")
    Traceback (most recent call last):
    ...
    cowclip_merlin.errors.InputError: `model_name` '../ctr': use letters, digits, _, - and .
    """

    model_name: str = option("ctr", "name of the model", kind=str)
    model_version: int = option(1, "number of its version", kind=int, at_least=1, below=2**31)
    max_batch_size: int = option(
        4096, "rows of the largest batch", kind=int, at_least=1, below=2**31
    )

    def __post_init__(self) -> None:
        """Reject names and numbers that Triton does not accept."""
        super().__post_init__()
        if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*", self.model_name):
            raise InputError(f"`model_name` {self.model_name!r}: use letters, digits, _, - and .")
