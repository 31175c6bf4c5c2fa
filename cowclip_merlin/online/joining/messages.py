"""Read the key and the time of messages, and set damaged ones aside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cowclip_merlin.online.events.columns import Row, text_of_value
from cowclip_merlin.online.events.events import Damage, encode_times
from cowclip_merlin.online.events.messages import decode_messages, read_column, refuse_ahead

if TYPE_CHECKING:
    from cowclip_merlin.online.events.features import LogFeatures


@dataclass(frozen=True)
class ParsedMessages:
    """Messages of one log, without the damaged ones.

    Attributes:
        keys: of the requests.
        times: whole seconds since 1970, int64 [n].
        values: the messages.
        damaged: position of a damaged message among those read -> what is wrong.
    """

    keys: list[str]
    times: npt.NDArray[np.int64]
    values: list[bytes]
    damaged: dict[int, str]


class MessageParser:
    """Parses the messages of one log.

    Args:
        features: names of the key and time columns.
        required: columns that a message must have, too.
    """

    def __init__(self, features: LogFeatures, required: Sequence[str] = ()) -> None:
        self._features, self._key, self._time = features, features.key, features.time
        self._required = frozenset([self._key, self._time, *required])

    def parse(self, values: Sequence[bytes], now: float) -> ParsedMessages:
        """Return the keys and times of messages.

        Args:
            values: the messages.
            now: seconds since 1970 by this machine's clock.
        """
        damage, keys = Damage(), []
        rows = damage.rows = decode_messages(values, damage)
        for i, row in enumerate(rows):
            key = ""
            try:
                key = self._key_of(row)
            except ValueError as error:
                damage.reasons.setdefault(i, str(error))
            keys.append(key)
        for i in damage.reasons:
            rows[i] = {self._time: None}
        times = read_column(rows, self._time, self._features, damage)
        seconds = encode_times(times, self._features, damage)
        refuse_ahead(seconds, now, self._features, damage)
        if not damage.reasons:
            return ParsedMessages(keys, seconds, list(values), {})
        good = np.flatnonzero(damage.good(len(values))).tolist()
        return ParsedMessages(
            [keys[i] for i in good], seconds[good], [values[i] for i in good], damage.reasons
        )

    def _key_of(self, row: Row) -> str:
        if not self._required <= row.keys():
            missing = min(self._required - row.keys())
            raise ValueError(f"no {missing!r}; {self._features.column(missing).remedy}")
        key = row[self._key]
        if type(key) is not str or not key.isascii():
            key = text_of_value(key, self._key, is_id=True)
        if not key:
            raise ValueError(f"{self._key} is missing; an event needs its key")
        return key
