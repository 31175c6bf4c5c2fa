"""Wrong addresses of logs, for which no server is needed."""

import pytest

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.logs.open_log import open_log


@pytest.mark.parametrize(
    "url, words",
    [
        ("redis://localhost", "redis://localhost: incomplete"),
        ("redis:///a", "incomplete"),
        ("redis://u:secret@/a", "redis://...: incomplete"),
        ("redis://:secret/secret@localhost:x/a", "redis://localhost:x/a: 'x' is no port"),
        ("redis://u:secret/secret@localhost:x/a", "redis://localhost:x/a: 'x' is no port"),
        ("redis://u:secret?secret@localhost/a", "redis://...: incomplete"),
        ("redis://localhost:99999/a", "'99999' is no port"),
        ("redis://a..b/x", "redis://a..b/x: 'a..b' is no host name"),
        (f"redis://{64 * 'a'}:7000/x", "is no host name"),
        ("redis://localhost/a?db=x", "db=x is no number"),
        ("redis://localhost/a?socket_timeout=9", "unknown option 'socket_timeout'"),
        ("amqp://u:secret@localhost/a?key=secret", "amqp://localhost/a: unknown kind"),
    ],
)
def test_wrong_addresses_are_one_line(url, words):
    with pytest.raises(InputError) as told:
        open_log(url)
    assert words in str(told.value) and "secret" not in str(told.value)
    assert "\n" not in str(told.value)
