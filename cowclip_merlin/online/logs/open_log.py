"""Open a log from the text that a user gives: a folder, redis://HOST/NAME or kafka://HOST/NAME."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from cowclip_merlin.errors import InputError, not_installed
from cowclip_merlin.online.logs.file_log import FileLog
from cowclip_merlin.online.logs.message_log import MessageLog
from cowclip_merlin.system.processes import check_host

LOG_FORMS = "a folder, redis://HOST:6379/STREAM or kafka://HOST:9092/TOPIC"
"""How the address of a log may be written, for help texts and errors."""


def open_log(url: str, *, create: bool = False, several: bool = False) -> MessageLog:
    """Open a log.

    Args:
        url: a folder, or the address of a Redis Stream or a Kafka topic; `RedisLog` and `KafkaLog`
            tell the options.
        create: make the log if it is not there, as those who append do.
        several: take a Kafka topic of several partitions, too, whose messages have no one order.

    Raises:
        InputError: the address is wrong, there is no such log, or a package is missing.
        LogUnavailable: the server does not answer.

    >>> open_log("amqp://host/clicks")
    Traceback (most recent call last):
    ...
    cowclip_merlin.errors.InputError: amqp://host/clicks: unknown kind of log 'amqp'; give a \
folder, redis://HOST:6379/STREAM or kafka://HOST:9092/TOPIC
    """
    scheme, separator, _ = url.partition("://")
    if not separator and ":" in url.partition("/")[0]:  # a folder would be made for a typo
        shown = "..." if "@" in url else url  # without a password
        what = f"a colon but no ://; give {LOG_FORMS}, or ./NAME for a folder of this name"
        raise InputError(f"{shown}: {what}")
    if not separator:
        return FileLog(url, create=create)
    if scheme not in ("redis", "rediss", "kafka"):
        what = f"unknown kind of log {scheme!r}; give {LOG_FORMS}"
        raise InputError(f"{shown_address(url)}: {what}")
    try:
        if scheme == "kafka":
            from cowclip_merlin.online.logs.kafka_log import KafkaLog

            return KafkaLog(url, create=create, several=several)
        from cowclip_merlin.online.logs.redis_log import RedisLog

        return RedisLog(url, create=create)
    except ImportError as error:
        raise not_installed(str(error.name), by=f"{scheme}://") from None


def log_identity(url: str) -> str:
    """Return what stays the same when a log moves to another machine: its kind and its name.

    >>> log_identity("redis://:secret@host:6379/clicks"), log_identity("/data/clicks/")
    ('redis clicks', 'folder clicks')
    """
    if "://" not in url:
        return f"folder {Path(url).resolve().name}"
    address = parse_address(url, LOG_FORMS)
    return f"{address.scheme} {address.path}"


def shown_address(url: str) -> str:
    """Return an address without the user, password and options that it may have.

    >>> shown_address("redis://user:secret@host:6379/model"), shown_address("/a/folder@home")
    ('redis://host:6379/model', '/a/folder@home')
    """
    return parse_address(url, LOG_FORMS).name if "://" in url else url


def log_place(url: str) -> str:
    """Return where a log is, however its address is written; without user and password.

    >>> log_place("redis://:secret@host/a") == log_place("redis://host/a"), log_place("/x/../y")
    (True, '/y')
    """
    if "://" not in url:
        return str(Path(url).resolve())
    address = parse_address(url, LOG_FORMS)
    return f"{address.name} {address.options.get('db', '')}".rstrip()


def refuse_one_log(**urls: str | None) -> None:
    """Refuse one log in two roles: what is written to it would be read as something else.

    Args:
        urls: name of the argument -> address; None for none.

    Raises:
        InputError: two of them are the same log.

    >>> refuse_one_log(impressions="a", actions="b", to="./a")
    Traceback (most recent call last):
    ...
    cowclip_merlin.errors.InputError: `impressions` and `to` are both folder a; use two logs
    """
    roles: dict[str, str] = {}
    for role, url in urls.items():
        if url is not None and (other := roles.setdefault(log_place(url), role)) != role:
            raise InputError(f"`{other}` and `{role}` are both {log_identity(url)}; use two logs")


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
