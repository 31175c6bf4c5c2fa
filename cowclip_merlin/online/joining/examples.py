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
    b'{"request": "r1","click":1,"cowclip_sample_rate":0.1}'
    """

    def __init__(self, label: str, negatives: float) -> None:
        self._label = label
        self._more: JsonObject = {SAMPLE_RATE: negatives}
        self._encode = json.JSONEncoder(separators=(",", ":")).encode
        names = (label, SAMPLE_RATE, LATE)
        texts = {json.dumps(name, ensure_ascii=ascii) for name in names for ascii in (True, False)}
        self._names = [text.encode() for text in texts]

    def write(self, impression: bytes, label: int, *, late: bool = False) -> bytes:
        """Return the example of an impression: JSON in one line.

        The columns go behind those of the impression, whose bytes stay as they are. One that has
        such a column, or is not written in one line, is read and written again.
        """
        more = {self._label: label} | self._more | ({LATE: 1} if late else {})
        in_one_line = impression[:1] == b"{" and impression[-1:] == b"}" and b"\n" not in impression
        if in_one_line and not any(name in impression for name in self._names):
            return impression[:-1] + b"," + self._encode(more)[1:].encode()
        return self._encode(json.loads(impression) | more).encode()
