"""The HTTP interface: predictions, status, metrics and pages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from importlib import resources
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from cowclip_merlin import __version__
from cowclip_merlin.serving.live.follower import Follower
from cowclip_merlin.serving.live.web.guard import Asgi, Guard, Refusal, token_check
from cowclip_merlin.serving.live.web.limits import ServingLimits
from cowclip_merlin.serving.live.web.predicting import CLIENT_LEFT, Predictor
from cowclip_merlin.serving.live.web.request_log import RequestLog
from cowclip_merlin.serving.live.web.schema import PREDICT_BODY, Predictions, problems
from cowclip_merlin.serving.live.web.status import CONTENT_TYPE, Metrics, ServerStatus

SAMPLE_EVERY = 1.0
"""Seconds between two samples for the charts."""

_ABOUT = "Click probabilities of a model that is being trained."
_NO_TOKEN = "the token is missing or wrong"
_OTHER_HOST = "Host has a name that is not allowed"
_NO_MODEL = "no model yet, or too many requests; Retry-After says when to try again"


def make_app(
    follower: Follower,
    limits: ServingLimits,
    *,
    log_name: str,
    token: str | None = None,
    names: Collection[str] = (),
) -> Asgi:
    """Make the application of one server.

    Args:
        follower: which has the model; someone else calls its `run`.
        limits: of requests.
        log_name: address of the sync log, for the status.
        token: that requests have to send; None for none.
        names: of this server, besides localhost; "*" for all.
    """
    requests = RequestLog()
    predictor = Predictor(follower, limits, requests)
    status = ServerStatus(follower, requests, log_name)
    app = FastAPI(
        title="CowClip-Merlin",
        version=__version__,
        description=_ABOUT,
        docs_url=None,  # that page needs a network
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lambda _: _lifespan(status, predictor),
    )
    _add_errors(app)
    # Pages and `/ready` hold no data.
    public, private = APIRouter(), APIRouter(dependencies=[Depends(token_check(token))])
    _add_predictions(private, predictor)
    _add_status(private, status)
    _add_ready(public, follower)
    _add_pages(public)
    app.include_router(private)
    app.include_router(public)
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


def _add_errors(app: FastAPI) -> None:
    """Give all errors the same form."""

    async def refused(_: Request, error: Refusal) -> Response:
        return JSONResponse(error.content(), error.status, headers=error.headers)

    async def unknown(request: Request, error: HTTPException) -> Response:
        text = f"{request.method} {request.url.path!a:.80}: {error.detail}; see /docs"
        return JSONResponse({"error": text}, error.status_code, headers=error.headers)

    async def left(_: Request, __: ClientDisconnect) -> Response:
        return Response(status_code=CLIENT_LEFT)  # nobody reads it

    async def failed(_: Request, error: Exception) -> Response:
        return JSONResponse({"error": f"a bug in the server: {type(error).__name__}"}, 500)

    handlers: dict[Any, Callable[..., Any]] = {
        Refusal: refused,
        HTTPException: unknown,
        ClientDisconnect: left,
        Exception: failed,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)


def _add_predictions(routes: APIRouter, predictor: Predictor) -> None:
    errors = problems(
        _400="not JSON",
        _401=_NO_TOKEN,
        _408="the body came too slowly",
        _413="too many bytes or events",
        _415="not application/json",
        _421=_OTHER_HOST,
        _422="an event is damaged; nothing was scored",
        _503=_NO_MODEL,
    )

    @routes.post(
        "/v1/predict",
        summary="Score events",
        response_model=None,
        responses={200: {"model": Predictions}, **errors},
        openapi_extra={"requestBody": PREDICT_BODY},
    )
    async def predict(request: Request) -> Response:
        """Return the probability of a click for each event, and the version of the model."""
        return Response(await predictor.predict(request), media_type="application/json")


def _add_status(routes: APIRouter, status: ServerStatus) -> None:
    errors, metrics = problems(_401=_NO_TOKEN, _421=_OTHER_HOST), Metrics(status)

    @routes.get("/v1/status", response_model=None, responses=errors)
    async def read_status() -> Response:
        """Return the model's version and columns, the age of the last sync, lag and counts."""
        return JSONResponse(status.content())

    @routes.get("/v1/history", response_model=None, responses=errors)
    async def read_history() -> Response:
        """Return one sample for each of the last 600 seconds, as the page draws them."""
        return JSONResponse(list(status.samples))

    @routes.get("/metrics", response_model=None, responses=errors)
    async def read_metrics() -> Response:
        """Return metrics for Prometheus."""
        return Response(metrics.text(), headers={"Content-Type": CONTENT_TYPE})


def _add_ready(routes: APIRouter, follower: Follower) -> None:
    errors = problems(_421=_OTHER_HOST, _503="no model yet")

    @routes.get("/ready", response_model=None, responses=errors)
    async def read_ready() -> Response:
        """Tell a load balancer whether there is a model: 200 or 503."""
        ready = follower.model is not None
        return JSONResponse({"ready": ready}, 200 if ready else 503)


def _add_pages(routes: APIRouter) -> None:
    folder = resources.files(__package__)
    live, api = ((folder / name).read_text("utf-8") for name in ("page.html", "api.html"))

    @routes.get("/", include_in_schema=False)
    async def show_live() -> HTMLResponse:
        return HTMLResponse(live)

    @routes.get("/docs", include_in_schema=False)
    async def show_api() -> HTMLResponse:
        return HTMLResponse(api)
