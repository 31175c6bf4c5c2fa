"""The HTTP interface: its routes, who may use them, and what its document says of them."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, suppress
from importlib import resources

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cowclip_merlin import __version__
from cowclip_merlin.serving.live.follower import FixedModel, Follower
from cowclip_merlin.serving.live.requests import (
    CLIENT_LEFT,
    CLOSE,
    Predictor,
    Refusal,
    RequestLog,
)
from cowclip_merlin.serving.live.settings import ServingLimits
from cowclip_merlin.serving.live.status import CONTENT_TYPE, ServerStatus
from cowclip_merlin.system.processes import is_own_host
from cowclip_merlin.types import JsonObject

SAMPLE_EVERY = 1.0
"""Seconds between two samples for the charts."""

_ABOUT = "Click probabilities of a model that is being trained."
_ABOUT_FIXED = "Click probabilities of the model of a run."
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


def make_app(
    follower: Follower | FixedModel,
    limits: ServingLimits,
    *,
    log_name: str,
    token: str | None = None,
    names: Collection[str] = (),
) -> ASGIApp:
    """Make the application of one server.

    Args:
        follower: which has the model; someone else calls its `run`, if it follows a log.
        limits: of requests.
        log_name: address of the sync log, or the folder of the run, for the status.
        token: that requests have to send; None for none.
        names: of this server, besides localhost; "*" for all.
    """
    requests = RequestLog()
    predictor = Predictor(follower, limits, requests)
    status = ServerStatus(follower, requests, log_name)
    fixed = isinstance(follower, FixedModel)
    app = FastAPI(
        title="CowClip-Merlin",
        version=__version__,
        description=_ABOUT_FIXED if fixed else _ABOUT,
        docs_url=None,  # that page needs a network
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lambda _: _lifespan(status, predictor),
        exception_handlers={
            Refusal: _refused,
            HTTPException: _unknown,
            ClientDisconnect: _left,
            Exception: _failed,
        },
    )
    private = APIRouter(dependencies=[Depends(token_check(token))])
    other_host = {"_421": "Host has a name that is not allowed"}
    refused = {"_401": "the token is missing or wrong", **other_host}

    @private.post(
        "/v1/predict",
        summary="Score events",
        response_model=None,
        responses={
            200: {"model": Predictions},
            **problems(
                _400="not JSON",
                _408="the body came too slowly",
                _413="too many bytes or events",
                _415="not application/json",
                _422="an event is damaged; nothing was scored",
                _503="no model yet, or too many requests; Retry-After says when to try again",
                **refused,
            ),
        },
        openapi_extra={"requestBody": body_of(follower.example if fixed else _EXAMPLE)},
    )
    async def predict(request: Request) -> Response:
        """Return the probability of a click for each event, and the version of the model."""
        return Response(await predictor.predict(request), media_type="application/json")

    @private.get("/v1/status", response_model=None, responses=problems(**refused))
    async def read_status() -> Response:
        """Return the model's version and columns, the age of the last sync, lag and counts."""
        return JSONResponse(status.content())

    @private.get("/v1/history", response_model=None, responses=problems(**refused))
    async def read_history() -> Response:
        """Return one sample for each of the last 600 seconds, as the page draws them."""
        return JSONResponse(list(status.samples))

    @private.get("/metrics", response_model=None, responses=problems(**refused))
    async def read_metrics() -> Response:
        """Return metrics for Prometheus."""
        return Response(status.metrics(), headers={"Content-Type": CONTENT_TYPE})

    app.include_router(private)

    # Whether there is a model, and the pages, are no secret.
    no_model = problems(**other_host, _503="no model yet")

    @app.get("/ready", response_model=None, responses=no_model)
    async def read_ready() -> Response:
        """Tell a load balancer whether there is a model: 200 or 503."""
        ready = follower.model is not None
        return JSONResponse({"ready": ready}, 200 if ready else 503)

    folder = resources.files(__package__)
    live, api = ((folder / name).read_text("utf-8") for name in ("page.html", "api.html"))

    @app.get("/", include_in_schema=False)
    async def show_live() -> HTMLResponse:
        return HTMLResponse(live)

    @app.get("/docs", include_in_schema=False)
    async def show_api() -> HTMLResponse:
        return HTMLResponse(api)

    return Guard(app, names)


@asynccontextmanager
async def _lifespan(status: ServerStatus, predictor: Predictor) -> AsyncIterator[None]:
    sampling = asyncio.create_task(_sample(status))
    try:
        yield
    finally:
        sampling.cancel()
        with suppress(asyncio.CancelledError):
            await sampling
        predictor.close()


async def _sample(status: ServerStatus) -> None:
    while True:
        status.take_sample()
        await asyncio.sleep(SAMPLE_EVERY)


async def _refused(_: Request, error: Refusal) -> Response:
    return answer_to(error)


async def _unknown(request: Request, error: HTTPException) -> Response:
    text = f"{request.method} {request.url.path!a:.80}: {error.detail}; see /docs"
    return JSONResponse({"error": text}, error.status_code, headers=error.headers)


async def _left(_: Request, __: ClientDisconnect) -> Response:
    return Response(status_code=CLIENT_LEFT)  # nobody reads it


async def _failed(_: Request, error: Exception) -> Response:
    return JSONResponse({"error": f"a bug in the server: {type(error).__name__}"}, 500)


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
            raise Refusal(401, text, headers={"WWW-Authenticate": "Bearer", **CLOSE})

    return check


class Guard:
    """Lets requests to this server's own names through to an application, and completes headers.

    It stands before the application, since other names get no answer at any path.

    Args:
        app: the application.
        names: of the server, besides localhost and addresses; "*" for all.
    """

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self._app, self._names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_more(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *_HEADERS]
            await send(message)

        app = self._app
        for name, value in scope["headers"]:
            if name == b"host" and not is_own_host(host := value.decode("latin-1"), self._names):
                text = f"Host is {host!a:.80}; name it in --allowed-hosts"
                app = answer_to(Refusal(421, text, headers=CLOSE))
        await app(scope, receive, send_more)


def answer_to(refusal: Refusal) -> Response:
    """The response to a request that is refused."""
    return JSONResponse(refusal.content(), refusal.status, headers=refusal.headers)


_EXAMPLE: JsonObject = {"user": 7, "item": "i12", "site": None, "price": 4.5}

_SCHEMA: JsonObject = {
    "type": "object",
    "required": ["events"],
    "properties": {
        "events": {
            "type": "array",
            "minItems": 1,
            "description": "Each event has all columns of /v1/status; null is a missing value. A "
            "column with several values per row takes a list, or text with its separator. So does "
            "a vector, whose length /v1/status says; it cannot be missing. Other columns are "
            "ignored.",
            "items": {
                "type": "object",
                "additionalProperties": {"type": ["string", "number", "null", "array"]},
            },
        }
    },
}


def body_of(event: JsonObject) -> JsonObject:
    """Return the description of a request's body, with an event as the example."""
    content = {"schema": _SCHEMA, "example": {"events": [event]}}
    return {"required": True, "content": {"application/json": content}}


class ModelVersion(BaseModel):
    """Which model answered."""

    generation: int = Field(description="counts the starts of the trainer")
    seq: int = Field(description="number of the last complete sync in its generation")
    trained: int | None = Field(description="events that the model was trained on")
    event_time: float | None = Field(description="time of the newest of them, s since 1970")


class Predictions(BaseModel):
    """One probability for each event, in their order; of several labels one for each."""

    predictions: list[float] | list[dict[str, float]] = Field(
        description="probability of a click; of several labels by name, of a regression the number"
    )
    model: ModelVersion


class DamagedEvent(BaseModel):
    """An event that cannot be scored."""

    event: int = Field(description="its number in the request, from 0")
    reason: str


class Problem(BaseModel):
    """Why there is no answer."""

    error: str = Field(description="one line: what is wrong, and what to do")
    events: list[DamagedEvent] | None = Field(None, description="damaged events, 20 at most")


def problems(**texts: str) -> dict[int | str, JsonObject]:
    """Responses with errors, by status.

    >>> problems(_401="the token is wrong")[401]["description"]
    'the token is wrong'
    """
    return {
        int(k[1:]): {"model": Problem, "description": text} for k, text in sorted(texts.items())
    }
