"""The numbers that a process tells, and how Prometheus reads those of a trainer and a joiner."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from socketserver import ThreadingMixIn
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from cowclip_merlin.errors import InputError, not_installed
from cowclip_merlin.settings import Settings, option
from cowclip_merlin.system import records
from cowclip_merlin.system.processes import cannot_listen, check_host, is_own_host

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric as Family

Values = Mapping[str, float | None]
"""The newest value of each number by its key; None, or no entry: not known yet."""

_CONNECTIONS = 16  # at one time; each has a thread
_SECONDS = 10.0  # from the connect to the end of the response


class Number(NamedTuple):
    """A number that a process tells.

    Attributes:
        key: where the process has it, such as its column in `metrics.csv`.
        help: what it counts or measures, with its unit.
        kind: "counter" only grows; "gauge" is a current value; "age" is the number of seconds since
            the time, in seconds since 1970, that the process has.
        name: in Prometheus, where it is not the key. There, each gets a prefix, and that of a
            counter also "_total".
    """

    key: str
    help: str
    kind: str = "gauge"
    name: str = ""


def families(prefix: str, numbers: Sequence[Number], values: Values) -> Iterator[Family]:
    """Yield the numbers whose value is known, as Prometheus has them."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for number in numbers:
        value = values.get(number.key)
        if value is None:
            continue
        if number.kind == "age":
            value = max(time.time() - value, 0.0)
        make = CounterMetricFamily if number.kind == "counter" else GaugeMetricFamily
        yield make(f"{prefix}_{number.name or number.key}", number.help, value=value)


def registry_of(collect: Callable[[], Iterable[Family]]) -> CollectorRegistry:
    """Return a registry of its own for what a process tells at each call."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.registry import Collector

    class Collected(Collector):
        def collect(self) -> Iterable[Family]:
            return collect()

    registry = CollectorRegistry()
    registry.register(Collected())
    return registry


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
    def endpoint(self, prefix: str, numbers: Sequence[Number]) -> Iterator[Endpoint]:
        """Answer Prometheus within the block, in a thread; without `metrics` do nothing.

        Args:
            prefix: of all names, such as "cowclip_train".
            numbers: what to tell.

        Raises:
            InputError: if the address cannot be used, or prometheus-client is missing.
        """
        endpoint = Endpoint()
        if self.metrics is None:
            yield endpoint
            return
        host, port = parse_address(self.metrics)
        names = (host, *self.allowed_hosts)
        server = _server(host, port, names, lambda: families(prefix, numbers, endpoint.read()))
        thread = Thread(target=server.serve_forever, name="metrics", daemon=True)
        thread.start()
        shown = f"[{host}]" if ":" in host else host
        endpoint.url = f"http://{shown}:{server.server_port}/metrics"
        try:
            yield endpoint
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


@dataclass
class Endpoint:
    """What answers Prometheus.

    Attributes:
        url: where; None if nothing answers.
        read: returns the newest values; is called in another thread.
    """

    url: str | None = None
    read: Callable[[], Values] = dict

    def tell(self, read: Callable[[], Values], say: Callable[[str], None]) -> None:
        """Answer with these values from now on, and say a line with the address."""
        self.read = read
        if self.url:
            say(f"metrics for Prometheus: {self.url}")


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


def _server(
    host: str, port: int, names: Sequence[str], collect: Callable[[], Iterable[Family]]
) -> WSGIServer:
    try:
        from prometheus_client import make_wsgi_app

        metrics = make_wsgi_app(registry_of(collect))
    except ModuleNotFoundError as error:
        raise not_installed(str(error.name)) from None

    def answer(request: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
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
        return make_server(address[0], port, answer, made, _Silent)
    except (OSError, OverflowError) as error:
        raise cannot_listen(host, port, error, "give `metrics` another address") from None
