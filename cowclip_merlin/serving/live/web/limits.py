"""What a server accepts."""

from __future__ import annotations

from dataclasses import dataclass, fields

from cowclip_merlin.checks import check_at_least_one, check_positive

HEADER_BYTES = 1 << 16
"""Bytes of a request's first line and headers at most."""


@dataclass(frozen=True, kw_only=True)
class ServingLimits:
    """Limits of the requests to `/v1/predict`.

    Attributes:
        max_body_bytes: size of a body.
        max_batch: events of a request.
        max_requests: requests that are read, wait or are computed at one time.
        timeout: seconds to read a body, and again to answer it.
        threads: requests that are computed at one time.

    Raises:
        InputError: a limit is not above 0.
    """

    max_body_bytes: int = 1 << 20
    max_batch: int = 1024
    max_requests: int = 64
    timeout: float = 5.0
    threads: int = 2

    def __post_init__(self) -> None:
        """Check the values."""
        given = {f"`{each.name}`": getattr(self, each.name) for each in fields(self)}
        check_positive({"`timeout`": given.pop("`timeout`")})
        check_at_least_one(given)
