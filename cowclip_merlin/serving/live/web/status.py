"""What a server says of itself: `/v1/status`, samples for charts, and metrics for Prometheus."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from cowclip_merlin import __version__
from cowclip_merlin.online.logs.open_log import shown_address
from cowclip_merlin.serving.live.web.predicting import version_content
from cowclip_merlin.serving.live.web.request_log import BUCKETS, RequestLog
from cowclip_merlin.system.machine import resident_megabytes
from cowclip_merlin.types import Json, JsonObject

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cowclip_merlin.online.served_model import ServedModel
    from cowclip_merlin.serving.live.follower import Follower


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


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# name without "cowclip_", help, path in the status
_GAUGES = (
    ("model_generation", "Starts of the trainer", ("model", "generation")),
    ("model_seq", "Number of the last complete sync in its generation", ("model", "seq")),
    ("model_rows", "Ids that have a row", ("model", "rows")),
    ("trained_events", "Events that the model was trained on", ("model", "trained")),
    ("event_age_seconds", "Age of the newest trained event", ("sync", "event_age_seconds")),
    ("sync_age_seconds", "Age of the last sync", ("sync", "age_seconds")),
    ("trainer_lag_events", "Events not trained yet at the last sync", ("sync", "trainer_lag")),
    ("progressive_auc", "AUC of recent events before they were trained", ("sync", "auc")),
    ("log_messages_behind", "Messages of the log not read yet", ("log", "messages_behind")),
    ("requests_running", "Requests without a response yet", ("requests", "running")),
    ("memory_megabytes", "Memory of the process", ("memory_megabytes",)),
)
_COUNTERS = (
    ("log_messages", "Messages of the log", ("log", "messages")),
    ("log_damaged", "Messages that could not be read", ("log", "damaged")),
    ("log_gaps", "Places of the log where messages were missing", ("log", "gaps")),
    ("model_swaps", "Times that another model took over", ("log", "swaps")),
    ("scored_events", "Events scored", ("requests", "events")),
)


class StatusCollector(Collector):
    """Gives the status of a server to Prometheus."""

    def __init__(self, status: ServerStatus) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        content, requests = self._status.content(), self._status.requests
        ready = float(content["model"] is not None)
        yield GaugeMetricFamily("cowclip_ready", "1 if there is a model, or 0", value=ready)
        for name, text, path in _GAUGES:
            value = _at(content, path)
            if value is not None:
                yield GaugeMetricFamily(f"cowclip_{name}", text, value=value)
        for name, text, path in _COUNTERS:
            yield CounterMetricFamily(f"cowclip_{name}", text, value=_at(content, path))
        text = "Ids looked up, with a row and without one"
        ids = CounterMetricFamily("cowclip_ids", text, labels=["row"])
        ids.add_metric(["absent"], requests.absent)
        ids.add_metric(["present"], requests.ids - requests.absent)
        yield ids
        text = "Responses of /v1/predict by HTTP status"
        answers = CounterMetricFamily("cowclip_requests", text, labels=["status"])
        for status, number in sorted(requests.answers.items()):
            answers.add_metric([str(status)], number)
        yield answers
        yield _histogram(requests)


def _histogram(requests: RequestLog) -> Metric:
    """Times of the responses with 200."""
    ends = [*map(str, BUCKETS), "+Inf"]
    buckets = list(zip(ends, accumulate(requests.buckets)))
    text = "Time of responses of /v1/predict with 200"
    return HistogramMetricFamily(
        "cowclip_request_seconds", text, buckets=buckets, sum_value=requests.seconds
    )


def _at(content: Json, path: tuple[str, ...]) -> Json:
    for name in path:
        content = None if content is None else content[name]
    return content


class Metrics:
    """A registry of its own with the metrics of one server."""

    def __init__(self, status: ServerStatus) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(StatusCollector(status))

    def text(self) -> bytes:
        """Return the metrics as Prometheus reads them."""
        return generate_latest(self._registry)
