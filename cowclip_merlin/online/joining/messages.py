"""Read the key and the time of messages, and set damaged ones aside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cowclip_merlin.online.events.events import Damage, encode_times
from cowclip_merlin.online.events.messages import Row, decode_messages, refuse_ahead
from cowclip_merlin.online.events.requests import remedy_without, text_of_value
from cowclip_merlin.tables.layout import LATEST
from cowclip_merlin.types import Json

if TYPE_CHECKING:
    import pyarrow as pa

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
        damage, keys, times = Damage(), [], []
        for i, row in enumerate(decode_messages(values, damage)):
            key, time = "", 0
            try:
                key, time = self._key_of(row), row[self._time]
            except ValueError as error:
                damage.reasons.setdefault(i, str(error))
            keys.append(key)
            times.append(time)
        seconds = self._seconds(times, damage)
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
            raise ValueError(f"no {missing!r}; {remedy_without(missing, self._features)}")
        key = row[self._key]
        if type(key) is not str or not key.isascii():
            key = text_of_value(key, self._key, is_id=True)
        if not key:
            raise ValueError(f"{self._key} is missing; an event needs its key")
        return key

    def _seconds(self, times: list[Json], damage: Damage) -> npt.NDArray[np.int64]:
        """Whole seconds of all times, 0 where one is damaged."""
        # Numbers in range need no detour by text; events.py takes the same floor.
        is_plain = self._features.time_format is None and {type(x) for x in times} <= {int, float}
        if is_plain and all(0 <= time <= LATEST for time in times):
            return np.floor(np.array(times, np.float64)).astype(np.int64)
        return encode_times(self._texts(times, damage), self._features, damage)

    def _texts(self, times: list[Json], damage: Damage) -> pa.Array:
        import pyarrow as pa

        texts: list[str | None] = []
        for i, time in enumerate(times):
            try:
                texts.append(text_of_value(time, self._time, is_id=False))
            except ValueError as error:
                damage.reasons.setdefault(i, str(error))
                texts.append("0")
        return pa.array(texts, pa.string())
