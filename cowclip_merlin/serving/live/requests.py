"""Read requests to `/v1/predict` within limits, answer them in threads, and count them."""

from __future__ import annotations

import asyncio
import json
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import numpy as np
from starlette.requests import ClientDisconnect

from cowclip_merlin.online.events.messages import encode_requests
from cowclip_merlin.serving.live.settings import ServingLimits
from cowclip_merlin.types import Json, JsonObject
from cowclip_merlin.workflows.raw.made_columns import with_made_columns

if TYPE_CHECKING:
    from starlette.requests import Request

    from cowclip_merlin.online.events.events import Events
    from cowclip_merlin.online.events.features import LogFeatures
    from cowclip_merlin.online.served_model import Prediction, Version
    from cowclip_merlin.serving.live.follower import FixedModel, Follower
    from cowclip_merlin.workflows.raw.log_format import LogFormat

MOST_REASONS = 20
"""Damaged events that an answer names."""

CLIENT_LEFT = 499
"""Status under which a request counts whose client left before its body was there."""

CLOSE = {"Connection": "close"}
"""Header of a response to a request whose body is not read."""


class Refusal(Exception):
    """A request that gets an error.

    Attributes:
        status: HTTP status.
        text: one line: what is wrong, and what to do.
        headers: of the response.
        events: (number of the event from 0, reason) of each damaged event.
    """

    def __init__(
        self,
        status: int,
        text: str,
        *,
        headers: Mapping[str, str] | None = None,
        events: Sequence[tuple[int, str]] = (),
    ) -> None:
        super().__init__(text)
        self.status, self.text, self.headers, self.events = status, text, headers, events

    def content(self) -> JsonObject:
        """Return the body of the response."""
        content: JsonObject = {"error": " ".join(self.text.split())}
        if self.events:
            content["events"] = [{"event": i, "reason": reason} for i, reason in self.events]
        return content


def not_now(text: str, seconds: int = 1) -> Refusal:
    """A refusal of a request that may succeed if it is sent again in some seconds."""
    return Refusal(503, text, headers={"Retry-After": str(seconds)})


RECENT = 60.0
"""Seconds of requests that the percentiles are of."""

MOST_RECENT = 4096
"""Requests that the percentiles are of at most."""

BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Upper ends of the buckets of the histogram of times, in seconds."""


@dataclass
class RequestLog:
    """What the requests to `/v1/predict` were; only the event loop's thread uses it.

    Attributes:
        answers: HTTP status -> responses.
        events: scored.
        ids: looked up for them.
        absent: of these ids, those that have no row.
        running: requests that have no response yet.
        seconds: all times of responses with 200 together.
        buckets: of these responses, those in each of `BUCKETS` and above the last one.
    """

    answers: Counter[int] = field(default_factory=Counter)
    events: int = 0
    ids: int = 0
    absent: int = 0
    running: int = 0
    seconds: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    _recent: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MOST_RECENT))

    def note(self, status: int, seconds: float) -> None:
        """Count a response; those with 200 also by their time."""
        self.answers[status] += 1
        if status == 200:
            self.seconds += seconds
            self.buckets[bisect_left(BUCKETS, seconds)] += 1
            self._recent.append((time.monotonic(), seconds))

    def note_scored(self, events: int, ids: int, absent: int) -> None:
        """Count the events of a response."""
        self.events += events
        self.ids += ids
        self.absent += absent

    @property
    def total(self) -> int:
        """All responses."""
        return sum(self.answers.values())

    def milliseconds(self, *shares: float) -> list[float | None]:
        """Percentiles of the time of recent answers, None without one.

        >>> log = RequestLog()
        >>> for i in range(101):
        ...     log.note(200, i / 1000)
        >>> log.milliseconds(0.5, 0.99)
        [50.0, 99.0]
        """
        since = time.monotonic() - RECENT
        times = sorted(seconds for when, seconds in self._recent if when >= since)
        if not times:
            return [None] * len(shares)
        return [round(1000 * times[int(share * (len(times) - 1))], 3) for share in shares]


async def read_body(
    headers: Mapping[str, str], parts: AsyncIterator[bytes], limits: ServingLimits
) -> bytes:
    """Read a body of JSON.

    Args:
        headers: of the request; names in any case.
        parts: of the body, as they come.
        limits: of its size.

    Raises:
        Refusal: it is not JSON by its headers, or too large.
    """
    _check_type(headers)
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdecimal()) or len(length) > 19:
        raise Refusal(400, f"Content-Length {length!a:.30} is not a number", headers=CLOSE)
    if int(length) > limits.max_body_bytes:
        raise _too_large(limits)
    body = bytearray()
    async for part in parts:
        body += part
        if len(body) > limits.max_body_bytes:
            raise _too_large(limits)
    return bytes(body)


def _too_large(limits: ServingLimits) -> Refusal:
    text = f"the body is larger than {limits.max_body_bytes} bytes; send fewer events at once"
    return Refusal(413, text, headers=CLOSE)


def _check_type(headers: Mapping[str, str]) -> None:
    kind, _, parameters = headers.get("content-type", "").partition(";")
    charset = parameters.strip().lower().replace('"', "")
    if kind.strip().lower() != "application/json" or charset not in ("", "charset=utf-8"):
        given = headers.get("content-type", "none")
        text = f"Content-Type is {given!a:.60}; send application/json in UTF-8"
        raise Refusal(415, text, headers=CLOSE)
    coding = headers.get("content-encoding", "identity")
    if coding.strip().lower() != "identity":
        text = f"Content-Encoding is {coding!a:.60}; send the body as it is"
        raise Refusal(415, text, headers=CLOSE)


def events_of(
    body: bytes, features: LogFeatures, limits: ServingLimits, layout: LogFormat | None = None
) -> Events:
    """Decode the events of a body.

    Args:
        body: JSON: `{"events": [{column: value, ...}, ...]}`.
        features: the columns.
        limits: of their number.
        layout: columns of the log of a run, of which some of `features` may be made.

    Raises:
        Refusal: it is anything else, or an event is damaged.
    """
    rows, damaged = _rows(_json(body), limits), {}
    if layout is not None:
        rows, damaged = with_made_columns(rows, layout)
    encoded = encode_requests(rows, features)
    if damaged := {**encoded.damaged, **damaged}:
        found = sorted(damaged.items())
        first, reason = found[0]
        more = f", and {len(found) - 1} more events are damaged" if len(found) > 1 else ""
        text = f"event {first}: {reason}{more}; nothing was scored"
        raise Refusal(422, text, events=found[:MOST_REASONS])
    return encoded.events


def _json(body: bytes) -> Json:
    if not body:
        raise Refusal(400, 'the body is empty; send {"events": [...]}')
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise Refusal(400, f"the body is not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise Refusal(400, "the body is nested too deeply") from None
    except ValueError as error:  # JSONDecodeError, or a number with thousands of digits
        raise Refusal(400, f"the body is not JSON: {error!s:.100}") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number; use null for a missing value")


def _rows(content: Json, limits: ServingLimits) -> list[JsonObject]:
    """The events, each an object."""
    if not isinstance(content, dict) or "events" not in content:
        raise Refusal(422, 'the body has no "events"; send {"events": [{column: value, ...}, ...]}')
    rows = content["events"]
    if not isinstance(rows, list):
        raise Refusal(422, f"events is {_kind(rows)}; send a list of objects")
    if not rows:
        raise Refusal(422, "events is empty; send at least one")
    if len(rows) > limits.max_batch:
        raise Refusal(413, f"{len(rows)} events in one request; send {limits.max_batch} at most")
    for i, row in enumerate(rows):
        if not isinstance(row, dict):
            reason = f"is {_kind(row)}; send an object {{column: value, ...}}"
            raise Refusal(422, f"event {i} {reason}", events=[(i, reason)])
    return rows


def _kind(value: Json) -> str:
    """What a JSON value is, in words."""
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
    return "null" if value is None else names.get(type(value), "a number")


class Answer(NamedTuple):
    """A response with predictions.

    Attributes:
        body: JSON.
        events: scored.
        ids: looked up.
        absent: of these, those without a row.
    """

    body: bytes
    events: int
    ids: int
    absent: int


class Predictor:
    """Scores the events of requests with the model that a follower has.

    Args:
        follower: which has the model.
        limits: of requests.
        log: counts them.
    """

    def __init__(
        self, follower: Follower | FixedModel, limits: ServingLimits, log: RequestLog
    ) -> None:
        self._follower, self._limits, self._log = follower, limits, log
        self._threads = ThreadPoolExecutor(limits.threads, thread_name_prefix="predict")

    async def predict(self, request: Request) -> bytes:
        """Return the body of the response.

        Raises:
            Refusal: there is another response.
        """
        log, begun = self._log, time.perf_counter()
        if log.running >= self._limits.max_requests:
            log.note(503, 0.0)
            raise not_now(f"{self._limits.max_requests} requests are running; try again later")
        log.running += 1
        computing, status = None, 500
        try:
            body = await self._read(request)
            computing = asyncio.get_running_loop().run_in_executor(
                self._threads, self._compute, body
            )
            computing.add_done_callback(self._end)  # it may be done after its response
            answer = await self._in_time(computing)
            status = 200
            log.note_scored(*answer[1:])
            return answer.body
        except Refusal as refusal:
            status = refusal.status
            raise
        except ClientDisconnect:
            status = CLIENT_LEFT
            raise
        finally:
            log.note(status, time.perf_counter() - begun)
            if computing is None:
                log.running -= 1

    async def _read(self, request: Request) -> bytes:
        reading = read_body(request.headers, request.stream(), self._limits)
        try:
            return await asyncio.wait_for(reading, self._limits.timeout)
        except asyncio.TimeoutError:
            text = f"the body did not come within {self._limits.timeout:g} s"
            raise Refusal(408, text, headers=CLOSE) from None

    async def _in_time(self, computing: asyncio.Future[Answer]) -> Answer:
        seconds = self._limits.timeout
        try:
            return await asyncio.wait_for(asyncio.shield(computing), seconds)
        except asyncio.TimeoutError:
            raise not_now(f"no answer within {seconds:g} s; send fewer events") from None

    def _end(self, computing: asyncio.Future[Answer]) -> None:
        self._log.running -= 1
        if not computing.cancelled():
            computing.exception()  # it was answered, or its response was sent before

    def _compute(self, body: bytes) -> Answer:
        """Decode and score, in a thread."""
        model = self._follower.model
        if model is None:
            raise not_now(f"no model yet: {self._follower.waiting_for}", 5)
        events = events_of(body, model.features, self._limits, self._follower.layout)
        found = model.predict(events)
        if not np.isfinite(found.probabilities).all():
            raise Refusal(500, "the model gives numbers that are not finite; see the trainer's log")
        body = _body(found, model.features.labels)
        return Answer(body, len(events), events.ids.values.size, found.absent)

    def close(self) -> None:
        """Wait for running requests."""
        self._threads.shutdown(wait=True)


def version_content(version: Version) -> JsonObject:
    """The version of a model, as responses have it."""
    return {
        "generation": version.generation,
        "seq": version.seq,
        "trained": version.info.get("trained"),
        "event_time": version.info.get("event_time"),
    }


def _body(found: Prediction, labels: Sequence[str]) -> bytes:
    values = found.probabilities.tolist()
    content = {
        "predictions": values if len(labels) == 1 else [dict(zip(labels, x)) for x in values],
        "model": version_content(found.version),
    }
    return json.dumps(content).encode()
