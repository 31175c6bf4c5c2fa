"""What a server says of itself: `/v1/status`, samples for charts, and metrics for Prometheus."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from cowclip_merlin import __version__
from cowclip_merlin.online.logs.open_log import shown_address
from cowclip_merlin.online.report import Number, families, registry_of
from cowclip_merlin.serving.live.requests import BUCKETS, RequestLog, version_content
from cowclip_merlin.system.machine import resident_megabytes
from cowclip_merlin.types import Json, JsonObject

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cowclip_merlin.online.served_model import ServedModel
    from cowclip_merlin.serving.live.follower import FixedModel, Follower


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

NUMBERS = (
    Number("ready", "1 if there is a model, or 0"),
    Number("model.generation", "Starts of the trainer", name="model_generation"),
    Number("model.seq", "Number of the last complete sync in its generation", name="model_seq"),
    Number("model.rows", "Ids that have a row", name="model_rows"),
    Number("model.trained", "Events that the model was trained on", name="trained_events"),
    Number("sync.event_age_seconds", "Age of the newest trained event", name="event_age_seconds"),
    Number("sync.age_seconds", "Age of the last sync", name="sync_age_seconds"),
    Number(
        "sync.trainer_lag", "Events not trained yet at the last sync", name="trainer_lag_events"
    ),
    Number("sync.auc", "AUC of recent events before they were trained", name="progressive_auc"),
    Number("log.messages_behind", "Messages of the log not read yet", name="log_messages_behind"),
    Number("requests.running", "Requests without a response yet", name="requests_running"),
    Number("memory_megabytes", "Memory of the process"),
    Number("log.messages", "Messages of the log", "counter", "log_messages"),
    Number("log.damaged", "Messages that could not be read", "counter", "log_damaged"),
    Number("log.gaps", "Places of the log where messages were missing", "counter", "log_gaps"),
    Number("log.swaps", "Times that another model took over", "counter", "model_swaps"),
    Number("requests.events", "Events scored", "counter", "scored_events"),
)
"""What Prometheus reads, as `cowclip_...`, by the path in the status."""

SAMPLES = 600
"""Samples that are kept: of ten minutes."""

DRAWN = {
    "time": "time",
    "behind": "log.messages_behind",
    "event_age": "sync.event_age_seconds",
    "sync_age": "sync.age_seconds",
    "rows": "model.rows",
    "trained": "model.trained",
    "memory": "memory_megabytes",
    "auc": "sync.auc",
    "requests": "requests.total",
    "p50": "requests.p50_milliseconds",
    "p99": "requests.p99_milliseconds",
}
"""The numbers of a sample, which the page draws, by their paths in the status."""


class ServerStatus:
    """The status of a follower and of its requests.

    Args:
        follower: which has the model.
        requests: their counts.
        log_name: address of the sync log, or the folder of the run.
    """

    def __init__(
        self, follower: Follower | FixedModel, requests: RequestLog, log_name: str
    ) -> None:
        self.follower, self.requests = follower, requests
        self._name, self._begun = shown_address(log_name), time.monotonic()
        self._registry = registry_of(self._families)
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
            **({"run": self._name} if follower.counts is None else {}),
            "log": self._log_content(),
            "requests": self._requests_content(),
        }

    def _log_content(self) -> JsonObject | None:
        """Return what the follower has read; None of a model that follows no log."""
        follower = self.follower
        if follower.counts is None:
            return None
        counts = asdict(follower.counts)
        return {"name": self._name, "messages_behind": follower.behind, **counts}

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
        numbers = self._numbers()
        self.samples.append({name: numbers.get(path) for name, path in DRAWN.items()})

    def metrics(self) -> bytes:
        """Return the numbers as Prometheus reads them."""
        return generate_latest(self._registry)

    def _numbers(self) -> JsonObject:
        """The values of the status by their paths, such as "model.rows"."""
        content = self.content()
        paths = {
            f"{part}.{name}": value
            for part in ("model", "sync", "log", "requests")
            for name, value in (content[part] or {}).items()
        }
        return {**content, **paths, "ready": float(content["model"] is not None)}

    def _families(self) -> Iterator[Metric]:
        yield from families("cowclip", NUMBERS, self._numbers())
        yield from _families_of_requests(self.requests)


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
    names = ("lag", "auc", "rows", "expired")
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


def _families_of_requests(requests: RequestLog) -> Iterator[Metric]:
    """Yield the counts that have labels or buckets."""
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
    text = "Time of responses of /v1/predict with 200"
    ends = [*map(str, BUCKETS), "+Inf"]
    buckets = list(zip(ends, accumulate(requests.buckets)))
    yield HistogramMetricFamily(
        "cowclip_request_seconds", text, buckets=buckets, sum_value=requests.seconds
    )
