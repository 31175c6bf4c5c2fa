"""Events as messages: JSON objects from column to value."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone

import numpy as np

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.events.raw_events import RawEvents
from cowclip_merlin.types import Array, Floats, Json


class EventMessages:
    """Makes messages of events.

    Args:
        features: names of the columns.
        new_times: write given times instead of those of the log.

    Raises:
        InputError: the time that is to be replaced is an input of the model, too.
    """

    def __init__(self, features: LogFeatures, *, new_times: bool = False) -> None:
        self._features, self._new_times = features, new_times
        if new_times and features.time in features.inputs:
            raise InputError(
                f"times are replaced by the clock's, but {features.time!r} is also an input of the "
                "model; keep the times of the log"
            )
        # One encoder for all messages; json.dumps would make one for each.
        self._encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

    def examples(self, events: RawEvents, times: Floats) -> list[bytes]:
        """Messages with inputs, time, key and labels.

        Args:
            events: the events.
            times: of them, seconds since 1970, [n]; used with `new_times`.
        """
        labels = dict(zip(self._features.labels, _label_columns(events.labels)))
        return self._messages(events.columns | labels | self._times(times))

    def impressions(self, events: RawEvents, times: Floats) -> list[bytes]:
        """Messages without the label. Arguments as for `examples`."""
        return self._messages(events.columns | self._times(times))

    def actions(self, clicks: Iterable[tuple[Json, float]]) -> list[bytes]:
        """Messages of clicks.

        Args:
            clicks: key of the impression, and time of the click in seconds since 1970.
        """
        keys, times = zip(*clicks)
        columns = {self._features.key: keys, self._features.time: self._values(times)}
        return self._messages(columns)

    def _times(self, times: Floats) -> dict[str, list[float | str]]:
        return {self._features.time: self._values(times)} if self._new_times else {}

    def _values(self, times: Sequence[float] | Floats) -> list[float | str]:
        """Times as the features file says that they are written."""
        if self._features.time_format is None:
            return np.round(times, 3).tolist()
        dates = [datetime.fromtimestamp(float(time), timezone.utc) for time in times]
        return [f"{date:{self._features.time_format}}" for date in dates]

    def _messages(self, columns: Mapping[str, Sequence[Json]]) -> list[bytes]:
        names = list(columns)
        rows = zip(*columns.values())
        return [self._encode(dict(zip(names, row))).encode() for row in rows]


def _label_columns(labels: Array) -> list[list[float | None]]:
    """Return the JSON values of each label, given as [n] or [n, T]."""
    if labels.ndim == 1:
        return [labels.tolist()]
    return [[None if np.isnan(x) else x for x in column] for column in labels.T.tolist()]
