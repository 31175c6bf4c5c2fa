"""Find free ports of this machine, and check names of hosts."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection
from contextlib import ExitStack

from cowclip_merlin.errors import InputError


def free_ports(count: int) -> list[int]:
    """Return different TCP ports of this machine that nobody uses now.

    Another program may take one before the caller does.

    >>> ports = free_ports(3)
    >>> len(set(ports))
    3
    """
    with ExitStack() as stack:  # hold all of them until the last is found
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in found:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in found]


def cannot_listen(host: str, port: int, error: Exception, remedy: str) -> InputError:
    """Return the error for an address of this machine that a server cannot have.

    >>> str(cannot_listen("::1", 80, OSError(13, "Permission denied"), "give another `port`"))
    'cannot listen at ::1 port 80: Permission denied; give another `port`'
    """
    reason = getattr(error, "strerror", None) or error
    return InputError(f"cannot listen at {host} port {port}: {reason}; {remedy}")


def check_host(host: str, what: str) -> None:
    """Refuse a text that can be neither a host's name nor its address, before anything asks for it.

    Args:
        host: the name or the address.
        what: beginning of the error.

    Raises:
        InputError: Python cannot encode it, as a part of it is empty or too long.

    >>> check_host("::1", "--host")
    >>> check_host("a..b", "--host")
    Traceback (most recent call last):
    ...
    cowclip_merlin.errors.InputError: --host: 'a..b' is no host name; use 1 to 63 letters a part
    """
    try:
        host.encode("idna")
    except UnicodeError:
        raise InputError(f"{what}: {host!r} is no host name; use 1 to 63 letters a part") from None


def is_own_host(header: str, names: Collection[str]) -> bool:
    """Whether a request's header `Host` can name this server.

    A page from elsewhere reaches a server behind a browser if its own name leads to that server's
    address for a moment (DNS rebinding). Its requests then have its name, never an address.

    Args:
        header: `HOST` or `HOST:PORT`; "" if the request has none, as those of browsers always have.
        names: that lead to this server besides `localhost`, in any case; "*" for all.

    >>> [is_own_host(each, ["ctr.example"]) for each in ("127.0.0.1:80", "[::1]", "CTR.example.")]
    [True, True, True]
    >>> is_own_host("evil.example:80", ["ctr.example"]), is_own_host("evil.example", ["*"])
    (False, True)
    """
    bracketed = header.startswith("[")
    name = header[1:].partition("]")[0] if bracketed else header.partition(":")[0]
    name = name.lower().removesuffix(".")
    if not header or name == "localhost" or {"*", name} & {each.lower() for each in names}:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
