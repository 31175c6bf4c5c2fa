"""HTTP connections whose headers are short and come soon."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from cowclip_merlin.online.serving.web.limits import HEADER_BYTES


class BoundedHttp(HttpToolsProtocol):
    """Closes a connection whose headers are too long, or not there within the keep-alive time.

    Uvicorn limits neither, so a client could fill the memory or keep connections for ever.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._deadline.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take data, and close the connection if they are too many headers."""
        if self._waiting and self._deadline.cancelled():  # empty lines before the next request
            self._await_headers()
        waited, self._header_bytes = self._waiting, self._header_bytes + len(data)
        super().data_received(data)
        long = self._waiting and waited and self._header_bytes > HEADER_BYTES
        if long and not self.transport.is_closing():
            self.send_400_response(f"The headers are longer than {HEADER_BYTES} bytes.")

    def on_headers_complete(self) -> None:
        """Stop the clock."""
        self._waiting = False
        self._deadline.cancel()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Wait for the next request."""
        super().on_message_complete()
        self._waiting, self._header_bytes = True, 0

    def on_message_begin(self) -> None:
        """Start the clock of a request that has begun to come."""
        super().on_message_begin()
        self._deadline.cancel()
        self._await_headers()

    def _await_headers(self) -> None:
        self._waiting, self._header_bytes = True, 0
        self._deadline: Any = self.loop.call_later(self.timeout_keep_alive, self._close_late)

    def _close_late(self) -> None:
        if self._waiting and not self.transport.is_closing():
            self.transport.close()
