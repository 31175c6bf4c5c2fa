"""Training examples as JSON."""

from __future__ import annotations

import json

from cowclip_merlin.online.events.messages import LATE
from cowclip_merlin.online.events.sample_rates import SAMPLE_RATE
from cowclip_merlin.types import JsonObject


class ExampleWriter:
    """Makes examples of impressions.

    Args:
        label: name of the label column.
        negatives: probability with which negatives are kept; each example carries it, so that
            nobody takes another column of the impression for it.

    >>> ExampleWriter("click", 0.1).write(b'{"request": "r1"}', 1)
    b'{"request":"r1","click":1,"cowclip_sample_rate":0.1}'
    """

    def __init__(self, label: str, negatives: float) -> None:
        self._label = label
        self._more: JsonObject = {SAMPLE_RATE: negatives}
        self._encode = json.JSONEncoder(separators=(",", ":")).encode

    def write(self, impression: bytes, label: int, *, late: bool = False) -> bytes:
        """Return the example of an impression: JSON in one line."""
        row = json.loads(impression) | {self._label: label} | self._more
        return self._encode(row | {LATE: 1} if late else row).encode()
