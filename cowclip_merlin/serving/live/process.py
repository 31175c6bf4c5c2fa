"""One server process: a thread that follows the log, and an HTTP server."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import resource
import shlex
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.logs.message_log import LogRefused, LogUnavailable
from cowclip_merlin.online.logs.open_log import open_log, shown_address
from cowclip_merlin.serving.live.follower import FixedModel, Follower
from cowclip_merlin.serving.live.http import make_app
from cowclip_merlin.serving.live.settings import Listening, ServingLimits
from cowclip_merlin.system.processes import cannot_listen, check_host
from cowclip_merlin.training.build import choose_device
from cowclip_merlin.training.run_config import RunConfig, data_of_run, local_run
from cowclip_merlin.types import JsonObject
from cowclip_merlin.workflows import PreparedData

LOG = logging.getLogger("cowclip.serve")

_HEADER_BYTES = 1 << 16  # of a request's first line and headers at most
_BACKLOG = 256  # connections that wait to be accepted
_OTHER_FILES = 100  # that a server has open besides its connections
_LONGEST_SHOWN = 500  # characters of a request to try
_TURN = 0.001  # seconds that a Python thread works while others wait; Python's default is 0.005


def serve(
    log: str,
    *,
    run: str | Path | None = None,
    listening: Listening | None = None,
    token: str | None = None,
    limits: ServingLimits | None = None,
    access_log: bool = False,
) -> None:
    """Serve the model of a sync log until SIGINT or SIGTERM.

    Args:
        log: address of the sync log.
        run: the run folder as this machine sees it; None: as the trainer names it.
        listening: where to listen; None for the defaults.
        token: that requests have to send; None for none.
        limits: of requests; None for the defaults.
        access_log: whether to print a line for each request.

    Raises:
        InputError: the log's address, the host or a file is wrong, or the port is not free.
        LogRefused: the log's server refuses access before there is a model to serve.
    """
    with suppress(LogUnavailable):  # a server that is away may come later
        open_log(log).close()

    def load() -> Follower:
        return Follower(lambda: open_log(log), run=run, name=shown_address(log))

    _serve(load, log, listening, token, limits, access_log=access_log)


def serve_run(
    run: str | Path,
    *,
    data: str | Path | None = None,
    listening: Listening | None = None,
    token: str | None = None,
    limits: ServingLimits | None = None,
    access_log: bool = False,
) -> None:
    """Serve the model of a run of `cowclip train` until SIGINT or SIGTERM.

    Args:
        run: the run folder.
        data: the folder that it was trained on; None: where it was then.
        listening: as for `serve`, like the others.
        token: that requests have to send.
        limits: of requests.
        access_log: whether to print a line for each request.

    Raises:
        InputError: the run, its folder, the host or a file is wrong, or the port is not free.
    """
    # What is wrong here is said before TensorFlow starts.
    local = local_run(run)
    data = data_of_run(local, RunConfig.load(local)) if data is None else data
    prepared = PreparedData.load(data)

    def load() -> FixedModel:
        LOG.info("loading %s", run)
        return FixedModel.of_run(local, prepared.path)

    _serve(load, str(run), listening, token, limits, access_log=access_log)


def _serve(
    load: Callable[[], Follower | FixedModel],
    name: str,
    listening: Listening | None,
    token: str | None,
    limits: ServingLimits | None,
    *,
    access_log: bool,
) -> None:
    """Listen, set up TensorFlow, load what has the model, and serve it."""
    limits, listening = limits or ServingLimits(), listening or Listening()
    tls = listening.tls
    _check_tls(tls)
    _check_connections(limits)
    listener = _listen(listening.host, listening.port)
    _set_up_tensorflow(limits.threads)
    follower = load()
    app = make_app(follower, limits, log_name=name, token=token, names=listening.names)
    config = http_config(app, limits, tls, access_log=access_log)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    url = f"{'https' if tls else 'http'}://{shown}:{port}"
    LOG.info("serving %s from %s", url, shown_address(name))
    if isinstance(follower, FixedModel):
        LOG.info("try it: %s", _request_of(follower.example, url, has_token=token is not None))
    sys.setswitchinterval(_TURN)  # requests wait for less while a snapshot is loaded
    server = uvicorn.Server(config)
    with _following(follower, server):
        server.run(sockets=[listener])


def _request_of(event: JsonObject, url: str, *, has_token: bool) -> str:
    """Return the command that sends a short event, or where to find a long one.

    It is one for every curl: `--json` came with 7.82, and Ubuntu 22.04 has an older one.
    """
    body = json.dumps({"events": [event]}, ensure_ascii=False)
    if len(body) > _LONGEST_SHOWN:
        return f"{url}/docs"
    token = " -H 'Authorization: Bearer TOKEN'" if has_token else ""
    header = f"-H 'Content-Type: application/json'{token}"
    return f"curl -d {shlex.quote(body)} {header} {url}/v1/predict"


def http_config(
    app: ASGIApp, limits: ServingLimits, tls: tuple[Path, Path] | None, *, access_log: bool
) -> uvicorn.Config:
    """Return how uvicorn serves an application within the limits."""
    return uvicorn.Config(
        app,
        http=partial(BoundedConnection, limits=limits),  # type: ignore[arg-type]
        h11_max_incomplete_event_size=_HEADER_BYTES,
        ws="none",
        log_config=None,
        access_log=access_log,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=limits.idle_timeout,  # type: ignore[arg-type]  a fraction will do
        timeout_graceful_shutdown=int(2 * limits.timeout) + 1,
        **dict(zip(("ssl_certfile", "ssl_keyfile"), map(str, tls or ()))),
    )


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


def _check_tls(files: tuple[Path, Path] | None) -> None:
    """Refuse a certificate or a key that cannot be used, before anything starts."""
    if files is None:
        return
    certificate, key = files
    for file in files:
        if not file.is_file():
            raise InputError(f"{file}: no such file; give a PEM file")
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # With a password, a locked key fails and nobody is asked for one.
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error) or "damaged"
        raise InputError(
            f"{certificate} and {key}: not a certificate and its key without a password "
            f"({reason!s:.60}); give two PEM files"
        ) from None


def _check_connections(limits: ServingLimits) -> None:
    """Refuse a limit that the system's own would come before: nothing else could be opened."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and limits.max_connections > most - _OTHER_FILES:
        raise InputError(
            f"max_connections is {limits.max_connections}, but this process may have {most} files "
            f"open; give at most {most - _OTHER_FILES}, or raise `ulimit -n`"
        )


def _listen(host: str, port: int) -> socket.socket:
    """Listen before TensorFlow starts: a port in use is said at once."""
    check_host(host, f"cannot listen at {host} port {port}")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except (OSError, OverflowError) as error:
        raise cannot_listen(host, port, error, "give another `port` or `host`") from None
    return listening


def _set_up_tensorflow(threads: int) -> None:
    """Use the CPU, and no more threads for one request than it needs."""
    tf = compat.tensorflow()
    choose_device("cpu")
    tf.config.threading.set_intra_op_parallelism_threads(min(threads, os.cpu_count() or 1))
    tf.config.threading.set_inter_op_parallelism_threads(1)


@contextmanager
def _following(follower: Follower | FixedModel, server: uvicorn.Server) -> Iterator[None]:
    """Follow the log in a thread within the block; a refusal ends the server, and is raised."""
    if isinstance(follower, FixedModel):
        gc.collect()
        gc.freeze()
        yield
        return
    from cowclip_merlin.online.training import trainer  # noqa: F401  imports Merlin Models

    stop, refusals = threading.Event(), []

    def follow() -> None:
        try:
            follower.run(stop, LOG)
        except LogRefused as error:
            refusals.append(error)
            server.should_exit = True

    # What is imported by now stays: the collector need not look at it while requests wait.
    gc.collect()
    gc.freeze()
    thread = threading.Thread(target=follow, name="follow", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=10)
    for error in refusals:
        raise error
