"""Checks the token of each request and whether there is a place, and adds headers."""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from cowclip_merlin.serving.live.web.refusal import Refusal

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
_NO_TOKEN = Refusal(
    401,
    "the token is missing or wrong; send the header Authorization: Bearer TOKEN",
    headers={"WWW-Authenticate": "Bearer", "Connection": "close"},  # the body is not read
)


class Guard:
    """Lets requests with the token through to an application.

    Pages and `/ready` need no token: they hold no data.

    Requests above the limit are refused here: a server that is full has no time for more.

    Args:
        app: the application.
        token: that requests have to send; None lets all requests through.
        refuse_if_full: tells whether a request to `/v1/predict` is one too many.
    """

    def __init__(
        self, app: Asgi, token: str | None, refuse_if_full: Callable[[], Refusal | None]
    ) -> None:
        self._app, self._refuse_if_full = app, refuse_if_full
        self._wanted = None if token is None else f"Bearer {token}".encode()

    async def __call__(
        self, scope: Scope, receive: Callable[[], Awaitable[Scope]], send: Send
    ) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif refusal := self._refusal(scope):
            await _refuse(refusal, _with_headers(send))
        else:
            await self._app(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope) -> Refusal | None:
        if not self._is_allowed(scope):
            return _NO_TOKEN
        predicts = scope["path"] == "/v1/predict" and scope["method"] == "POST"
        return self._refuse_if_full() if predicts else None

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


async def _refuse(refusal: Refusal, send: Send) -> None:
    body = json.dumps(refusal.content()).encode()
    headers = [(k.lower().encode(), v.encode()) for k, v in (refusal.headers or {}).items()]
    headers += [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
