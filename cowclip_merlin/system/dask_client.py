"""Connect to a running Dask scheduler."""

from __future__ import annotations

from typing import Any

from cowclip_merlin.errors import InputError


def connect(scheduler: str, *, default: bool = True) -> Any:
    """Return a client of a running scheduler, which is a context that closes it.

    Args:
        scheduler: its address, like "tcp://10.0.0.5:8786".
        default: whether Dask's own functions use this client from now on.

    Raises:
        InputError: if no scheduler answers at the address.
    """
    from distributed import Client

    try:
        return Client(scheduler, timeout="10s", set_as_default=default)
    except (OSError, ValueError) as error:
        raise InputError(
            f"--scheduler {scheduler}: no Dask scheduler answers; start one, or omit the option"
        ) from error
