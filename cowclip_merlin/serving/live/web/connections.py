"""Connections that are few, and that end when their clients are too slow."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from cowclip_merlin.serving.live.web.limits import ServingLimits


class BoundedConnection(H11Protocol):
    """A connection of uvicorn, which by itself waits for ever for headers and for slow readers.

    At most one timer runs: from the connect, or from the first byte after a response, until the
    headers are there; then until the client has the whole response. uvicorn's own timer is for
    connections that are idle.

    Args:
        limits: of connections.
        arguments: of uvicorn.
    """

    def __init__(self, *, limits: ServingLimits, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._limits = limits
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Close the connection if there are too many."""
        full = len(self.connections) >= self._limits.max_connections
        super().connection_made(transport)
        if full:
            transport.abort()
        else:
            self._abort_after(self._limits.timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Begin to wait for headers, if the connection was idle."""
        if self._timer is None:
            self._abort_after(self._limits.timeout)
        super().data_received(data)

    def handle_events(self) -> None:
        """Give a new request the time for its body, its answer, and its client to read it."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._abort_after(3 * self._limits.timeout)

    def on_response_complete(self) -> None:
        """Leave an idle connection to uvicorn's timer."""
        if not self.transport.is_closing():  # else it closes when its client has the response
            self._stop()
        super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, also if its client never reads the last response."""
        super().timeout_keep_alive_handler()
        self._abort_after(self._limits.timeout)

    def _abort_after(self, seconds: float) -> None:
        self._stop()
        self._timer = self.loop.call_later(seconds, self.transport.abort)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
