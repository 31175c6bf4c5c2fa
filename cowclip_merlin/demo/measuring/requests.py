"""Measure how long a server takes to answer a request of one row."""

from __future__ import annotations

import json
import time

from cowclip_merlin.demo.measuring.repeat import Repeat
from cowclip_merlin.demo.measuring.server_client import NoAnswer, ServerClient
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.logs.message_log import MessageLog

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
