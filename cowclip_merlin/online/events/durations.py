"""Durations as people write them: 30min, 5h, 1d."""

from __future__ import annotations

import re

from cowclip_merlin.errors import InputError
from cowclip_merlin.tables.layout import LATEST

SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86_400}


def parse_duration(value: object, name: str) -> int:
    """Seconds of a duration.

    Args:
        value: whole seconds, or text such as "45s", "30min", "5h" or "1d".
        name: what it is, for the message.

    Raises:
        InputError: it is something else, or not above 0.

    >>> parse_duration("30min", "ttl"), parse_duration("1d", "ttl"), parse_duration(90, "ttl")
    (1800, 86400, 90)
    """
    found = re.fullmatch(r"(\d{1,18})\s*(s|min|h|d)?", str(value), re.ASCII)
    seconds = int(found[1]) * SECONDS[found[2] or "s"] if found else 0
    if isinstance(value, bool) or not 0 < seconds <= LATEST:
        raise InputError(
            f"{name} is {value!r:.40}; give whole seconds, or a time like 30min, 5h or 1d"
        )
    return seconds
