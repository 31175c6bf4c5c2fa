"""What a server accepts."""

from __future__ import annotations

from dataclasses import dataclass

from cowclip_merlin.settings import Settings, option

HEADER_BYTES = 1 << 16
"""Bytes of a request's first line and headers at most."""


@dataclass(frozen=True, kw_only=True)
class ServingLimits(Settings):
    """Limits of the requests to `/v1/predict`.

    Raises:
        InputError: a limit is not above 0.
    """

    max_body_bytes: int = option(1 << 20, "size of a request's body", at_least=1)
    max_batch: int = option(1024, "events of one request", at_least=1)
    max_requests: int = option(
        64, "requests at one time; others get 503 and may try again", at_least=1
    )
    timeout: float = option(
        5.0, "seconds for the body of a request to come, and for its answer", metavar="S", above=0
    )
    threads: int = option(2, "requests to compute at one time", at_least=1)
