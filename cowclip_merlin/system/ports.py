"""Find free ports of this machine."""

from __future__ import annotations

import socket
from contextlib import ExitStack


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
