"""Connect to a running Dask scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cowclip_merlin.errors import InputError

if TYPE_CHECKING:
    from distributed import Client


def connect(scheduler: str, *, default: bool = True) -> Client:
    """Return a client of a running scheduler, which is a context that closes it.

    Args:
        scheduler: its address, like "tcp://10.0.0.5:8786".
        default: whether Dask's own functions use this client from now on.

    Raises:
        InputError: if no scheduler answers at the address, or it cannot be asked.
    """
    from distributed import Client

    _check_certificates(scheduler)
    try:
        return Client(scheduler, timeout="10s", set_as_default=default)
    except (OSError, ValueError) as error:
        raise InputError(
            f"`scheduler` {scheduler}: no Dask scheduler answers; start one, or omit the option"
        ) from error
    except ImportError as error:
        raise InputError(f"`scheduler` {scheduler}: {error}; install it, or use tcp://") from error


def _check_certificates(scheduler: str) -> None:
    """Refuse an encrypted connection without certificates; a client that fails would go on."""
    from distributed.security import Security

    if not scheduler.startswith(("tls://", "wss://")):
        return
    if Security().get_connection_args("client").get("ssl_context") is None:
        raise InputError(
            f"`scheduler` {scheduler}: Dask has no certificates for an encrypted connection; set "
            "distributed.comm.tls in its configuration, or use tcp://"
        )
