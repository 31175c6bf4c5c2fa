"""Answers to wrong requests; checks of hosts and tokens, and headers of responses."""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping, Sequence
from typing import Any

from fastapi import Request

from cowclip_merlin.system.processes import is_own_host
from cowclip_merlin.types import JsonObject


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
_UNREAD = {"Connection": "close"}  # the body is not read


def token_check(token: str | None) -> Callable[[Request], Awaitable[None]]:
    """Return what refuses a request without the token, for the routes that need it.

    It belongs to routes, since many spellings of a path lead to one: `/metrics%0A`, too.

    Args:
        token: that requests have to send; None lets all requests through.
    """
    wanted = None if token is None else f"Bearer {token}".encode()

    async def check(request: Request) -> None:
        given = [value for name, value in request.scope["headers"] if name == b"authorization"]
        if wanted and not (len(given) == 1 and hmac.compare_digest(given[0], wanted)):
            text = "the token is missing or wrong; send the header Authorization: Bearer TOKEN"
            raise Refusal(401, text, headers={"WWW-Authenticate": "Bearer", **_UNREAD})

    return check


class Guard:
    """Lets requests to this server's own names through to an application.

    Args:
        app: the application.
        names: of the server, besides localhost and addresses; "*" for all.
    """

    def __init__(self, app: Asgi, names: Collection[str]) -> None:
        self._app, self._names = app, names

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
        for name, value in scope["headers"]:
            if name == b"host" and not is_own_host(value.decode("latin-1"), self._names):
                text = f"Host is {value.decode('latin-1')!a:.80}; name it in --allowed-hosts"
                return Refusal(421, text, headers=_UNREAD)
        return None


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
