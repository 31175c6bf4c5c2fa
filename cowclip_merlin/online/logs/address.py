"""Addresses of logs on servers, such as redis://HOST:6379/STREAM, taken apart."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote

from cowclip_merlin.errors import InputError
from cowclip_merlin.system.processes import check_host


@dataclass(frozen=True, kw_only=True)
class LogAddress:
    """The parts of an address.

    Attributes:
        scheme: such as "redis".
        hosts: such as "HOST:6379", or several with commas.
        path: what follows the hosts, without the first slash.
        user: empty if there is none.
        password: empty if there is none.
        options: after the question mark.
    """

    scheme: str
    hosts: str
    path: str
    user: str = ""
    password: str = field(default="", repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """The address without user, password and options, for messages."""
        return f"{self.scheme}://{self.hosts}/{self.path}"

    def check_options(self, known: Collection[str]) -> None:
        """Refuse options that this kind of log does not have.

        Raises:
            InputError: there is one.
        """
        for option in self.options:
            if option not in known:
                raise InputError(f"{self.name}: unknown option {option!r}; known: {list(known)}")


def parse_address(url: str, form: str) -> LogAddress:
    """Take an address apart.

    Args:
        url: SCHEME://[USER:PASSWORD@]HOST[:PORT]/PATH[?OPTION=VALUE&...]; percent signs escape.
        form: what it should look like, for the error.

    Raises:
        InputError: a part is missing.

    >>> address = parse_address("redis://me:secret@host:6379/clicks?db=2", "redis://HOST/STREAM")
    >>> address.name, address.user, address.password, dict(address.options)
    ('redis://host:6379/clicks', 'me', 'secret', {'db': '2'})
    """
    # By hand: urlsplit ends the hosts at a # or a bracket in a password.
    scheme, _, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    place, _, path = rest.partition("/")
    login, _, hosts = place.rpartition("@")
    user, _, password = login.partition(":")
    path = path.strip("/")
    # An @ in the path is that after a password with a slash.
    if not path or "@" in path or any(host[:1] in ("", ":") for host in hosts.split(",")):
        shown = f"{scheme}://..." if "@" in url else url  # without a password
        hint = ", and a slash in a password as %2F" if "@" in path else ""
        raise InputError(f"{shown}: incomplete address; give {form}{hint}")
    return LogAddress(
        scheme=scheme,
        hosts=hosts,
        path=unquote(path),
        user=unquote(user),
        password=unquote(password),
        options=dict(parse_qsl(query, keep_blank_values=True)),
    )


def host_and_port(address: LogAddress, default: int) -> tuple[str, int]:
    """Return the one host and its port.

    Raises:
        InputError: the host can be no name, or the port is no number.

    >>> host_and_port(LogAddress(scheme="redis", hosts="[::1]:7000", path="a"), 6379)
    ('::1', 7000)
    """
    host, separator, port = address.hosts.rpartition(":")
    if not separator or port.endswith("]"):  # of an IPv6 address
        host, port = address.hosts, str(default)
    if not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise InputError(f"{address.name}: {port!r} is no port; give a number such as {default}")
    host = host.strip("[]")
    check_host(host, address.name)
    return host, int(port)
