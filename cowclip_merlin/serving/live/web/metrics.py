"""Metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
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

from cowclip_merlin.serving.live.web.request_log import BUCKETS, RequestLog
from cowclip_merlin.types import Json

if TYPE_CHECKING:
    from cowclip_merlin.serving.live.web.status import ServerStatus

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
