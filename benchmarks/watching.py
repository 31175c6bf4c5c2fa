"""Measure running parts of online training: a watch of the syncs, requests, and probes."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from cowclip_merlin.demo.report import percentiles
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.logs.message_log import LogUnavailable, MessageLog, Position
from cowclip_merlin.online.sync.sync_message import SYNCED, SyncMessage
from cowclip_merlin.types import Json, JsonObject

STAGES = ("join", "train", "push", "apply")

_RETRY = 0.5  # seconds until a log that did not answer is asked again
_ROWS = 1000  # impressions that a server is asked for in turn
_LONGEST = 60.0  # seconds until a probe is given up
_SHORTEST, _LONGEST_PAUSE = 0.01, 0.25  # seconds between two questions to the servers
_PART = 0.02  # of the time since the probe, which a pause takes
_FIRST_ID = 10**15  # far above the ids of the stream


class Repeat(ABC):
    """A thread that repeats `step` every so many seconds until it is stopped."""

    def __init__(self, name: str, *, every: float) -> None:
        self._every, self._ended = every, threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.failure: str | None = None  # the error that has ended the thread
        self.unavailable = 0  # steps that a log has ended since its server did not answer

    @abstractmethod
    def step(self) -> None:
        """Do the work once."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def is_ending(self) -> bool:
        """Whether the thread was asked to end."""
        return self._ended.is_set()

    def stop(self) -> None:
        """End the thread after its current step."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def pause(self, seconds: float) -> None:
        """Wait within a step; returns at once when the thread is to end."""
        self._ended.wait(seconds)

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                try:
                    self.step()
                except LogUnavailable:
                    self.unavailable += 1
                    self._ended.wait(_RETRY)
                self._ended.wait(self._every)
        except Exception:
            self.failure = traceback.format_exc()


class Sync(NamedTuple):
    """A sync that is complete in the log."""

    generation: int  # counts the starts of the trainer
    seq: int  # number of the sync's last message in its generation
    sent: float  # by the trainer, seconds since 1970
    seen: float  # when it was in the log
    position: Position  # in the log of examples, up to which the trainer has trained
    trained: int  # events so far


class SyncWatch(Repeat):
    """Reads the log that servers follow, up to `position`; `syncs` are all so far."""

    def __init__(self, log: MessageLog) -> None:
        super().__init__("syncs", every=0.0)
        self._log, self.position = log, log.start()
        self.syncs: list[Sync] = []

    def step(self) -> None:
        """Read messages, or wait a moment for them."""
        messages = self._log.read(self.position, most=64, wait=0.05)
        seen = time.time()
        for message in messages:
            self.position = message.after
            self._note(SyncMessage.decode(message.value), seen)

    def _note(self, message: SyncMessage, seen: float) -> None:
        info = message.info
        if message.kind == SYNCED:
            self.syncs.append(
                Sync(
                    generation=message.generation,
                    seq=message.seq,
                    sent=float(info["time"]),
                    seen=seen,
                    position=tuple(info["position"]),
                    trained=int(info["trained"]),
                )
            )

    def first_from(self, version: tuple[int, int], *, sent: float) -> Sync | None:
        """Return the first sync of a version (generation, seq) or later, not sent before a time."""
        later = (x for x in self.syncs if (x.generation, x.seq) >= version and x.sent >= sent)
        return next(later, None)

    def first_with(self, place: int) -> Sync | None:
        """Return the first sync whose model was trained on so many messages of the examples."""
        return next((sync for sync in self.syncs if sync.position[0] >= place), None)


class Answer(NamedTuple):
    """Predictions of a server, and the version of its model."""

    probabilities: list[float]  # of a click, one for each row
    generation: int  # counts the starts of the trainer
    seq: int  # number of the model's last sync in its generation


class NoAnswer(Exception):
    """The server cannot be reached, or has no model yet."""


class ServerClient:
    """A connection to one server of this machine, for one thread."""

    def __init__(self, port: int, *, timeout: float = 10.0) -> None:
        self.port, self._timeout = port, timeout
        self._connection: http.client.HTTPConnection | None = None

    def predict(self, rows: Sequence[Mapping[str, Json]]) -> Answer:
        """Return the predictions for some rows; `NoAnswer` if it is away or has no model."""
        found = self._ask("POST", "/v1/predict", {"events": list(rows)})
        model = found["model"]
        return Answer(found["predictions"], model["generation"], model["seq"])

    def status(self) -> JsonObject:
        """Return the server's status; `NoAnswer` if it is away."""
        return self._ask("GET", "/v1/status")

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, method: str, path: str, body: JsonObject | None = None) -> JsonObject:
        """Ask once; over a new connection if the server has closed the old one."""
        if self._connection is None:
            self._connection = http.client.HTTPConnection(
                "127.0.0.1", self.port, timeout=self._timeout
            )
        data = None if body is None else json.dumps(body).encode()
        try:
            self._connection.request(method, path, data, {"Content-Type": "application/json"})
            answer = self._connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise NoAnswer(f"port {self.port}: {error!r:.100}") from None
        if answer.status != 200:
            raise NoAnswer(f"port {self.port}: {answer.status} {text[:100]!r}")
        return json.loads(text)


class Requester(Repeat):
    """Asks one server for one impression of a log after the other."""

    def __init__(
        self, features: LogFeatures, impressions: MessageLog, port: int, *, every: float = 0.02
    ) -> None:
        super().__init__("requests", every=every)
        messages = impressions.read(impressions.start(), most=_ROWS)
        rows = [json.loads(message.value) for message in messages]
        self._rows = [{name: row[name] for name in features.inputs} for row in rows]
        self._client, self._asked = ServerClient(port), 0
        self.seconds: list[float] = []  # of each request
        self.unanswered = 0  # requests

    def step(self) -> None:
        """Make one request."""
        row = self._rows[self._asked % len(self._rows)]
        self._asked += 1
        began = time.perf_counter()
        try:
            self._client.predict([row])
        except NoAnswer:
            self.unanswered += 1
            return
        self.seconds.append(time.perf_counter() - began)


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Seconds of one probe on its way."""

    join: float  # until its example was in the log of examples
    train: float  # until the trainer sent the sync with it
    push: float  # until that sync was complete in the log of servers
    apply: float  # until all servers answered with it
    total: float


class Prober(Repeat):
    """Sends a probe from time to time: an impression with new ids and a click on it.

    A probe is known to a server when its prediction differs from that for other new ids. `every` is
    the mean of the seconds from the end of a probe to the next one.
    """

    def __init__(
        self,
        features: LogFeatures,
        impressions: MessageLog,
        actions: MessageLog,
        examples: MessageLog,
        watch: SyncWatch,
        ports: Sequence[int],
        *,
        every: float,
    ) -> None:
        super().__init__("probes", every=0.0)
        self._mean_pause = every
        self._features = features
        self._impressions, self._actions, self._examples = impressions, actions, examples
        self._watch = watch
        self._clients = [ServerClient(port) for port in ports]
        self._sent = 0
        self.latencies: list[Latency] = []  # of the probes that all servers knew in the end
        self.given_up = 0  # probes that a server did not know in time

    def step(self) -> None:
        """Send one probe, and wait until all servers know it."""
        # At random, as a probe ends with a sync: at a fixed time, all would wait equally long.
        self.pause(random.uniform(0, 2 * self._mean_pause))
        if not self.is_ending:
            self._send_probe()

    def _send_probe(self) -> None:
        began, number = time.time(), self._sent
        self._sent += 1
        place = self._examples.end()
        key = f"probe-{began:.6f}-{number}"
        row = self._row(2 * number)
        event = row | {self._features.key: key, self._features.time: round(began, 3)}
        self._impressions.append([json.dumps(event).encode()])
        click = {self._features.key: key, self._features.time: round(began, 3)}
        self._actions.append([json.dumps(click).encode()])
        joined = self._wait_for_example(place, key, began)
        # The second row has ids that no event ever has.
        known = joined and self._wait_for_servers([row, self._row(2 * number + 1)], began)
        if known:
            self._note(began, joined, *known)
        elif not self.is_ending:
            self.given_up += 1

    def _row(self, number: int) -> JsonObject:
        """Return an event whose ids are new, and whose numbers are missing."""
        ids = {column.name: _FIRST_ID + number for column in self._features.categorical}
        return ids | {column.name: None for column in self._features.continuous}

    def _wait_for_example(self, place: Position, key: str, began: float) -> float | None:
        """Return when the example was there."""
        wanted = key.encode()
        while self._goes_on(began):
            for message in self._examples.read(place, most=4096, wait=0.05):
                place = message.after
                if wanted in message.value:
                    return time.time()
        return None

    def _wait_for_servers(
        self, rows: Sequence[JsonObject], began: float
    ) -> tuple[float, tuple[int, int]] | None:
        """Return when the last server knew the ids, and the first version that did."""
        waiting, versions = list(self._clients), []
        while self._goes_on(began):
            for client in list(waiting):
                answer = None
                with suppress(NoAnswer):  # it is asked again
                    answer = client.predict(rows)
                if answer and answer.probabilities[0] != answer.probabilities[1]:
                    waiting.remove(client)
                    versions.append((answer.generation, answer.seq))
            if not waiting:
                return time.time(), min(versions)
            self._pause_after(began)
        return None

    def _note(self, began: float, joined: float, known: float, version: tuple[int, int]) -> None:
        # A server knows rows a moment before it has the version of their sync.
        sync = self._watch.first_from(version, sent=joined)
        while sync is None and self._goes_on(began):  # the watch reads it in a moment
            self.pause(_SHORTEST)
            sync = self._watch.first_from(version, sent=joined)
        if sync is None:
            return
        # A server may read a sync a moment before the watch does.
        known = max(known, sync.sent)
        seen = min(sync.seen, known)
        self.latencies.append(
            Latency(
                join=joined - began,
                train=sync.sent - joined,
                push=seen - sync.sent,
                apply=known - seen,
                total=known - began,
            )
        )

    def _pause_after(self, began: float) -> None:
        """Wait before the next question: servers that wait themselves need not be asked often."""
        waited = time.time() - began
        self.pause(min(max(_PART * waited, _SHORTEST), _LONGEST_PAUSE))

    def _goes_on(self, began: float) -> bool:
        return not self.is_ending and time.time() - began < _LONGEST


def latency_summary(latencies: Sequence[Latency], given_up: int) -> JsonObject:
    """Return the percentiles of each stage and of the whole way."""
    stages = {
        name: percentiles([getattr(each, name) for each in latencies], 50, 95)
        for name in (*STAGES, "total")
    }
    return {"probes": len(latencies), "given_up": given_up, "seconds": stages}
