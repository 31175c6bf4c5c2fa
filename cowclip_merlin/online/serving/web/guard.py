"""Checks the token of each request, and adds headers to each response."""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Send = Callable[[Scope], Awaitable[None]]
Asgi = Callable[[Scope, Callable[[], Awaitable[Scope]], Send], Awaitable[None]]

# The pages load nothing from elsewhere, and may not be shown inside other pages.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_HEADERS = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
]


class Guard:
    """Lets requests with the token through to an application.

    Pages and `/ready` need no token: they hold no data.

    Args:
        app: the application.
        token: that requests have to send; None lets all requests through.
    """

    def __init__(self, app: Asgi, token: str | None) -> None:
        self._app = app
        self._wanted = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif self._is_allowed(scope):
            await self._app(scope, receive, _with_headers(send))
        else:
            await _refuse(_with_headers(send))

    def _is_allowed(self, scope: Scope) -> bool:
        path = scope["path"]
        if self._wanted is None or not (path.startswith("/v1/") or path == "/metrics"):
            return True
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self._wanted)


def _with_headers(send: Send) -> Send:
    async def send_more(message: Scope) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *_HEADERS]
        await send(message)

    return send_more


async def _refuse(send: Send) -> None:
    text = "the token is missing or wrong; send the header Authorization: Bearer TOKEN"
    body = json.dumps({"error": text}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"www-authenticate", b"Bearer"),
        (b"connection", b"close"),  # the body is not read
    ]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": body})
