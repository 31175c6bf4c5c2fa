"""What a server accepts, and where it listens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cowclip_merlin.errors import InputError
from cowclip_merlin.settings import Settings, option


@dataclass(frozen=True, kw_only=True)
class ServingLimits(Settings):
    """Limits of connections, and of the requests to `/v1/predict`.

    Raises:
        InputError: a limit is not above 0.
    """

    max_body_bytes: int = option(1 << 20, "size of a request's body", at_least=1)
    max_batch: int = option(1024, "events of one request", at_least=1)
    max_requests: int = option(
        64, "requests at one time; others get 503 and may try again", at_least=1
    )
    timeout: float = option(
        5.0,
        "seconds for the headers of a request to come, for its body, and for its answer",
        metavar="S",
        above=0,
    )
    idle_timeout: float = option(
        30.0, "seconds without a request until a connection is closed", metavar="S", above=0
    )
    max_connections: int = option(
        512, "connections at one time; others are closed at once", at_least=1
    )
    threads: int = option(2, "requests to compute at one time", at_least=1)


@dataclass(frozen=True, kw_only=True)
class Listening(Settings):
    """Where a server listens.

    Raises:
        InputError: a value is out of range, or one file of TLS is missing.
    """

    host: str = option(
        "127.0.0.1",
        "address to listen at; 0.0.0.0 for all networks of this machine",
        metavar="HOST",
    )
    allowed_hosts: tuple[str, ...] = option(
        (),
        "names besides localhost and --host that requests may have in Host; *: any (addresses are "
        "always allowed)",
        metavar="A,B",
    )
    port: int = option(8000, "port to listen at; 0 for a free one", at_least=0, below=1 << 16)
    tls_cert: Path | None = option(
        None,
        "PEM file of the certificate and its chain, to speak HTTPS; with --tls-key",
        metavar="FILE",
    )
    tls_key: Path | None = option(None, "PEM file of the certificate's key", metavar="FILE")

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InputError("`tls_cert` and `tls_key` belong together; give both, or none")

    @property
    def names(self) -> tuple[str, ...]:
        """The names that requests may have in `Host`, besides localhost."""
        return (self.host, *self.allowed_hosts)

    @property
    def tls(self) -> tuple[Path, Path] | None:
        """The files of the certificate and its key; None: HTTP."""
        if self.tls_cert is None or self.tls_key is None:
            return None
        return self.tls_cert, self.tls_key
