"""Answer requests to `/v1/predict` in threads, no more of them than the limits allow."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from starlette.requests import ClientDisconnect

from cowclip_merlin.serving.live.web.limits import ServingLimits
from cowclip_merlin.serving.live.web.refusal import Refusal, not_now
from cowclip_merlin.serving.live.web.request_body import events_of, read_body
from cowclip_merlin.serving.live.web.request_log import RequestLog
from cowclip_merlin.types import JsonObject

if TYPE_CHECKING:
    from starlette.requests import Request

    from cowclip_merlin.serving.live.follower import Follower
    from cowclip_merlin.serving.live.served_model import Prediction, Version

CLIENT_LEFT = 499
"""Status under which a request counts whose client left before its body was there."""


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

    def __init__(self, follower: Follower, limits: ServingLimits, log: RequestLog) -> None:
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
        done, status = _Once(log), 500
        try:
            answer = await self._answer(request, done)
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
            done.unless_computing()

    async def _answer(self, request: Request, done: _Once) -> Answer:
        limits = self._limits
        try:
            reading = read_body(request.headers, request.stream(), limits)
            body = await asyncio.wait_for(reading, limits.timeout)
        except asyncio.TimeoutError:
            text = f"the body did not come within {limits.timeout:g} s"
            raise Refusal(408, text, headers={"Connection": "close"}) from None
        computing = asyncio.get_running_loop().run_in_executor(self._threads, self._compute, body)
        done.follow(computing)
        try:
            return await asyncio.wait_for(asyncio.shield(computing), limits.timeout)
        except asyncio.TimeoutError:
            raise not_now(f"no answer within {limits.timeout:g} s; send fewer events") from None

    def _compute(self, body: bytes) -> Answer:
        """Decode and score, in a thread."""
        model = self._follower.model
        if model is None:
            raise not_now(f"no model yet: {self._follower.waiting_for}", 5)
        events = events_of(body, model.features, self._limits)
        found = model.predict(events)
        if not np.isfinite(found.probabilities).all():
            raise Refusal(500, "the model gives numbers that are not finite; see the trainer's log")
        body = _body(found, model.features.labels)
        return Answer(body, len(events), events.ids.values.size, found.absent)

    def close(self) -> None:
        """Wait for running requests."""
        self._threads.shutdown(wait=True)


class _Once:
    """Ends a request when its thread is done, which may be after its response."""

    def __init__(self, log: RequestLog) -> None:
        self._log, self._computing = log, False

    def follow(self, computing: asyncio.Future[Answer]) -> None:
        """The request ends when this is done."""
        self._computing = True
        computing.add_done_callback(self._end)

    def unless_computing(self) -> None:
        """End the request if nothing is computed for it."""
        if not self._computing:
            self._log.running -= 1

    def _end(self, computing: asyncio.Future[Answer]) -> None:
        self._log.running -= 1
        if not computing.cancelled():
            computing.exception()  # it was answered, or its response was sent before


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
