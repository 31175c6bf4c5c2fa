"""Ask a server of `cowclip online serve`, and measure how long it takes to answer one row."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.logs.message_log import MessageLog
from cowclip_merlin.types import Json, JsonObject
from measuring.sync_watch import Repeat


class Answer(NamedTuple):
    """Predictions of a server.

    Attributes:
        probabilities: of a click, one for each row.
        generation: of the model, which counts the starts of the trainer.
        seq: number of the model's last sync in its generation.
    """

    probabilities: list[float]
    generation: int
    seq: int


class NoAnswer(Exception):
    """The server cannot be reached, or has no model yet."""


class ServerClient:
    """A connection to one server, for one thread.

    Args:
        port: of the server on this machine.
        timeout: seconds to wait for an answer.
    """

    def __init__(self, port: int, *, timeout: float = 10.0) -> None:
        self.port, self._timeout = port, timeout
        self._connection: http.client.HTTPConnection | None = None

    def predict(self, rows: Sequence[Mapping[str, Json]]) -> Answer:
        """Return the predictions for some rows.

        Raises:
            NoAnswer: the server is away or has no model.
        """
        found = self._ask("POST", "/v1/predict", {"events": list(rows)})
        model = found["model"]
        return Answer(found["predictions"], model["generation"], model["seq"])

    def status(self) -> JsonObject:
        """Return the server's status.

        Raises:
            NoAnswer: the server is away.
        """
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


_ROWS = 1000  # impressions that are asked for in turn


class Requester(Repeat):
    """Asks one server for one impression after the other.

    Args:
        features: names of the columns.
        impressions: log of impressions, which holds some.
        port: of the server.
        every: seconds from an answer to the next request.

    Attributes:
        seconds: of each request.
        unanswered: requests that got no answer.
    """

    def __init__(
        self, features: LogFeatures, impressions: MessageLog, port: int, *, every: float = 0.02
    ) -> None:
        super().__init__("requests", every=every)
        messages = impressions.read(impressions.start(), most=_ROWS)
        rows = [json.loads(message.value) for message in messages]
        self._rows = [{name: row[name] for name in features.inputs} for row in rows]
        self._client, self._asked = ServerClient(port), 0
        self.seconds: list[float] = []
        self.unanswered = 0

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
