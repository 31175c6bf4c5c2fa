"""A server process, and a client that checks its answers while others load it."""

from __future__ import annotations

import http.client
import json
import random
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from cowclip_merlin.errors import InputError
from cowclip_merlin.system.processes import start, wait_for
from cowclip_merlin.types import Json, JsonObject

_LONGEST_START = 180.0  # seconds

Found = TypeVar("Found")


class Server:
    """`cowclip online serve` on a free port.

    Args:
        log: folder of the sync log.
        options: of the command.
        out: file for what it prints.

    Raises:
        InputError: it does not start.
    """

    def __init__(self, log: Path, options: Sequence[str], out: Path) -> None:
        self._out = out
        command = [sys.executable, "-m", "cowclip_merlin", "online", "serve", "--from", str(log)]
        with open(out, "wb") as stream:
            self.process = start([*command, "--port", "0", *options], stdout=stream)
        self.port = int(self._wait_for(self._find_port))
        self._wait_for(lambda: self.ask("GET", "/ready")[0] == 200)

    @property
    def url(self) -> str:
        """Address of the server."""
        return f"http://127.0.0.1:{self.port}"

    def _find_port(self) -> str | None:
        found = re.search(r"serving http://127\.0\.0\.1:(\d+) ", self._out.read_text())
        return found and found[1]

    def _wait_for(self, condition: Callable[[], Found]) -> Found:
        def answer() -> Found | None:
            with suppress(OSError):
                return condition()

        if found := wait_for(answer, self.process, _LONGEST_START):
            return found
        raise InputError(f"the server does not start: {self._out.read_text()[-300:]}")

    def ask(self, method: str, path: str, content: Json = None) -> tuple[int, Json]:
        """Status and JSON of a response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            body = None if content is None else json.dumps(content)
            headers = {} if content is None else {"Content-Type": "application/json"}
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, json.load(response)
        finally:
            connection.close()

    def stop(self) -> int:
        """End it by SIGTERM; returns its exit code."""
        self.process.terminate()
        return self.process.wait(timeout=60)


class Checker:
    """Compares answers with what is expected.

    Attributes:
        answers: that were right.
        refused: responses with 503.
        wrong: answers that differ by more than 1e-6, and other responses.
        oldest_sync: largest age of the last sync that the server told, in seconds.
    """

    def __init__(
        self, server: Server, requests: list[JsonObject], expected: npt.NDArray[np.float32]
    ) -> None:
        self._server, self._requests, self._expected = server, requests, expected
        self.answers = self.refused = self.wrong = 0
        self.oldest_sync = 0.0

    @contextmanager
    def checking(self, pause: float = 0.05) -> Iterator[None]:
        """Check an answer now and then within the block."""
        stop = threading.Event()

        def run() -> None:
            while not stop.wait(pause):
                self.check()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def check(self) -> None:
        """Ask for some events, and for the status."""
        first = random.randrange(len(self._requests) - 8)
        part = slice(first, first + random.randint(1, 8))
        status, answer = self._server.ask("POST", "/v1/predict", {"events": self._requests[part]})
        if status == 503:
            self.refused += 1
        elif status == 200 and np.abs(answer["predictions"] - self._expected[part]).max() <= 1e-6:
            self.answers += 1
        else:
            self.wrong += 1
        sync = self._server.ask("GET", "/v1/status")[1]["sync"]
        self.oldest_sync = max(self.oldest_sync, sync["age_seconds"] or 0.0)
