"""Let Prometheus and log collectors watch the trainer and the joiner."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from socketserver import ThreadingMixIn
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from cowclip_merlin.errors import InputError, missing_online_package
from cowclip_merlin.settings import Settings, option
from cowclip_merlin.system import records
from cowclip_merlin.system.processes import cannot_listen, check_host, is_own_host

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

    from prometheus_client.core import Metric as Family

Numbers = Mapping[str, float | None]
"""The newest value of each metric; None, or no entry: not known yet."""

_CONNECTIONS = 16  # at one time; each has a thread
_SECONDS = 10.0  # from the connect to the end of the response


class Metric(NamedTuple):
    """A number that a process tells.

    Attributes:
        name: without the prefix; that of a counter gets "_total".
        help: what it counts or measures, with its unit.
        kind: "counter" only grows; "gauge" is a current value; "age" is the number of seconds since
            the time, in seconds since 1970, that the process gives.
    """

    name: str
    help: str
    kind: str = "gauge"


@dataclass(frozen=True, kw_only=True)
class MonitoringSettings(Settings):
    """How others watch a process.

    Raises:
        InputError: if the address is none, or the format is unknown.
    """

    metrics: str | None = option(
        None,
        "let Prometheus read /metrics at this address of this machine; 0: a free port",
        metavar="[HOST:]PORT",
    )
    allowed_hosts: tuple[str, ...] = option(
        (),
        "names besides localhost and that of --metrics that requests may have in Host; *: any",
        metavar="A,B",
    )
    log_format: str = option("text", "form of the lines", choices=records.FORMATS)

    def __post_init__(self) -> None:
        """Check the address."""
        super().__post_init__()
        if self.metrics is not None:
            parse_address(self.metrics)

    @contextmanager
    def endpoint(self, prefix: str, metrics: Sequence[Metric]) -> Iterator[Endpoint]:
        """Answer Prometheus within the block, in a thread; without `metrics` do nothing.

        Args:
            prefix: of all names, such as "cowclip_train".
            metrics: what to tell.

        Raises:
            InputError: if the address cannot be used, or prometheus-client is missing.
        """
        endpoint = Endpoint()
        if self.metrics is None:
            yield endpoint
            return
        host, port = parse_address(self.metrics)
        names = (host, *self.allowed_hosts)
        families = lambda: endpoint.families(prefix, metrics)  # noqa: E731
        server, thread = _start_server(host, port, names, families)
        shown = f"[{host}]" if ":" in host else host
        endpoint.url = f"http://{shown}:{server.server_port}/metrics"
        try:
            yield endpoint
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


class Endpoint:
    """What answers Prometheus.

    Attributes:
        url: where; None if nothing answers.
    """

    def __init__(self) -> None:
        self.url: str | None = None
        self._read: Callable[[], Numbers] = dict

    def tell(self, read: Callable[[], Numbers], say: Callable[[str], None]) -> None:
        """Answer with these numbers from now on.

        Args:
            read: returns the newest numbers; is called in another thread.
            say: takes a line with the address.
        """
        self._read = read
        if self.url:
            say(f"metrics for Prometheus: {self.url}")

    def families(self, prefix: str, metrics: Sequence[Metric]) -> Iterator[Family]:
        """Yield the metrics whose value is known, as Prometheus has them."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        numbers = self._read()
        for metric in metrics:
            value = numbers.get(metric.name)
            if value is None:
                continue
            if metric.kind == "age":
                value = max(time.time() - value, 0.0)
            make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            yield make(f"{prefix}_{metric.name}", metric.help, value=value)


def parse_address(text: str) -> tuple[str, int]:
    """Split PORT or HOST:PORT; the host is 127.0.0.1 unless it is given.

    >>> parse_address("9100"), parse_address("0.0.0.0:9100"), parse_address("[::1]:0")
    (('127.0.0.1', 9100), ('0.0.0.0', 9100), ('::1', 0))
    >>> parse_address("node:http")
    Traceback (most recent call last):
    ...
    cowclip_merlin.errors.InputError: metrics is 'node:http'; give PORT or HOST:PORT
    """
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise InputError(f"metrics is {text!r}; give PORT or HOST:PORT")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    check_host(host, "metrics")
    return host, int(port)


class _Server(ThreadingMixIn, WSGIServer):
    """A server with few and short connections, as it shares the process of a trainer."""

    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        self._ends: dict[Any, float] = {}
        super().__init__(*arguments)

    def verify_request(self, request: Any, _: Any) -> bool:
        return len(self._ends) < _CONNECTIONS

    def process_request(self, request: Any, client_address: Any) -> None:
        self._ends[request] = time.monotonic() + _SECONDS
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Cut connections whose time is over; `serve_forever` calls this twice a second."""
        for connection, end in list(self._ends.items()):
            if end < time.monotonic():
                with suppress(OSError):  # it has ended by itself
                    connection.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        self._ends.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, *_: Any) -> None:
        """Say nothing of clients that left."""


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Silent(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Print no line for a request."""


def _start_server(
    host: str, port: int, names: Sequence[str], families: Callable[[], Iterator[Family]]
) -> tuple[WSGIServer, Thread]:
    try:
        from prometheus_client import CollectorRegistry, make_wsgi_app
        from prometheus_client.registry import Collector
    except ModuleNotFoundError as error:
        raise missing_online_package(error) from None

    class Families(Collector):
        def collect(self) -> Iterator[Family]:
            return families()

    registry = CollectorRegistry()
    registry.register(Families())
    metrics = make_wsgi_app(registry)

    def answer(request: WSGIEnvironment, start: StartResponse) -> list[bytes]:
        if not is_own_host(request.get("HTTP_HOST", ""), names):
            start("421 Misdirected Request", [])
            return [b"this name in Host is not allowed; see --allowed-hosts\n"]
        if request["PATH_INFO"] != "/metrics":
            start("404 Not Found", [])
            return [b"see /metrics\n"]
        return metrics(request, start)

    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = _Server6 if family == socket.AF_INET6 else _Server
        server = make_server(address[0], port, answer, made, _Silent)
    except (OSError, OverflowError) as error:
        raise cannot_listen(host, port, error, "give `metrics` another address") from None
    thread = Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    return server, thread
