"""What a server says of itself: `/v1/status`, and a sample each second for the page's charts."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import asdict
from typing import TYPE_CHECKING

from cowclip_merlin import __version__
from cowclip_merlin.online.logs.open_log import shown_address
from cowclip_merlin.serving.live.web.predicting import version_content
from cowclip_merlin.system.machine import resident_megabytes
from cowclip_merlin.types import Json, JsonObject

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cowclip_merlin.serving.live.follower import Follower
    from cowclip_merlin.serving.live.served_model import ServedModel
    from cowclip_merlin.serving.live.web.request_log import RequestLog

SAMPLES = 600
"""Samples that are kept: of ten minutes."""


class ServerStatus:
    """The status of a follower and of its requests.

    Args:
        follower: which has the model.
        requests: their counts.
        log_name: address of the sync log.
    """

    def __init__(self, follower: Follower, requests: RequestLog, log_name: str) -> None:
        self.follower, self.requests = follower, requests
        self._log_name, self._begun = shown_address(log_name), time.monotonic()
        self.samples: deque[JsonObject] = deque(maxlen=SAMPLES)

    def content(self) -> JsonObject:
        """Return the status, for JSON."""
        follower, model = self.follower, self.follower.model
        reason = follower.problem or follower.waiting_for
        return {
            "state": "waiting" if model is None else "serving",
            "problem": reason,
            "time": time.time(),
            "uptime_seconds": round(time.monotonic() - self._begun, 1),
            "software": __version__,
            "memory_megabytes": round(resident_megabytes(), 1),
            "model": None if model is None else _model_content(model),
            "sync": None if model is None else _sync_content(model.version.info),
            "log": {
                "name": self._log_name,
                "messages_behind": follower.behind,
                **asdict(follower.counts),
            },
            "requests": self._requests_content(),
        }

    def _requests_content(self) -> JsonObject:
        requests = self.requests
        p50, p99 = requests.milliseconds(0.5, 0.99)
        return {
            "total": requests.total,
            "answers": {str(status): n for status, n in sorted(requests.answers.items())},
            "running": requests.running,
            "events": requests.events,
            "absent_share": requests.absent / requests.ids if requests.ids else None,
            "p50_milliseconds": p50,
            "p99_milliseconds": p99,
        }

    def take_sample(self) -> None:
        """Remember the numbers that the page draws."""
        self.samples.append(sample_of(self.content()))


def sample_of(status: JsonObject) -> JsonObject:
    """The numbers of a status that the page draws."""
    model, sync = status["model"] or {}, status["sync"] or {}
    return {
        "time": status["time"],
        "behind": status["log"]["messages_behind"],
        "event_age": sync.get("event_age_seconds"),
        "sync_age": sync.get("age_seconds"),
        "rows": model.get("rows"),
        "trained": model.get("trained"),
        "memory": status["memory_megabytes"],
        "auc": sync.get("auc"),
        "requests": status["requests"]["total"],
        "p50": status["requests"]["p50_milliseconds"],
        "p99": status["requests"]["p99_milliseconds"],
    }


def _model_content(model: ServedModel) -> JsonObject:
    features = model.features
    return {
        **version_content(model.version),
        "rows": len(model),
        "row_megabytes": round(model.row_bytes / 1e6, 1),
        "categorical": [column.name for column in features.categorical],
        "continuous": [column.name for column in features.continuous],
        "vectors": features.lengths,
    }


def _sync_content(info: Mapping[str, Json]) -> JsonObject:
    """What the trainer said with the last sync, and how old that is."""
    names = ("lag", "auc", "rows", "admitted", "expired")
    return {
        "age_seconds": _age(info.get("time")),
        "event_age_seconds": _age(info.get("event_time")),
        **{("trainer_lag" if name == "lag" else name): _finite(info.get(name)) for name in names},
    }


def _age(when: Json) -> float | None:
    """Seconds since a time; clocks of two machines may differ a little."""
    when = _finite(when)
    return None if when is None else round(max(time.time() - when, 0.0), 3)


def _finite(value: Json) -> float | None:
    """A number that JSON knows; None for anything else."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if number and math.isfinite(value) else None
