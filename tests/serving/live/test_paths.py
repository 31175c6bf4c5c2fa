"""No spelling of a path leads round the token, over real connections."""

import json

import pytest
from http_clients import LIMITS, URL, ask, request, running

TOKEN = "Authorization: Bearer s3cret"
PRIVATE = (URL, "/v1/status", "/v1/history", "/metrics")
PUBLIC = ("/", "/docs", "/openapi.json", "/ready")
METHODS = (
    "GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE", "CONNECT", "get", "X",
)  # fmt: skip


def method_of(path):
    return "POST" if path == URL else "GET"


def spellings(path):
    """Requests' first lines that might lead to a path: (method, target)."""
    last = path[1:] or "docs"
    every = "".join(f"%{ord(letter):02x}" for letter in last)
    after = (
        "%0A %0a %0D %0D%0A %0A%0A %00 %20 %09 %0B %85 %E2%80%A8 %E2%80%8B %EF%BB%BF / // /. /.. "
        "%2F %2f.. /%2e ? ?a=1 ?%0A %3F # %23 ; ;a=1 %3B . %2E .. .json \\ %5C * ~ % %2 %zz %250A"
    )
    before = "// /// /./ /../ /a/../ /%2e/ /%2F \\ /%5C /;/"
    targets = [path + end for end in after.split()]
    targets += [start + last for start in before.split()]
    targets += [f"{start}{last}" for start in ("", "/a/%2e%2e/", "/%0A", "/%00/", "/docs/../")]
    targets += [f"{path}/../{last}", f"/ready%0A{path}", f"/ready?{path}", f"/ready;{path}", "*"]
    targets += [f"/{last.upper()}", f"/{last.title()}", f"/{last.swapcase()}%0A", f"{path}{path}"]
    targets += [f"/{every}", f"/{every}%0A", f"/{every.replace('%', '%25')}"]
    targets += [f"/%{ord(last[0]):02X}{last[1:]}", f"/{last[:-1]}%{ord(last[-1]):02x}"]
    targets += [f"/{last.replace('s', '%C5%BF')}", f"/{last.replace('i', '%C4%B1')}"]
    hosts = ("http://127.0.0.1", "https://127.0.0.1", "http://localhost:80", "http://a@127.0.0.1")
    targets += [f"{host}{path}{end}" for host in (*hosts, "//127.0.0.1") for end in ("", "%0A")]
    raw = [target.encode() for target in targets]
    raw += [
        (path + end).encode("utf-8") for end in ("\u2028", "\x85", "\xa0", "\x00", "\x0b", "\n")
    ]
    found = [(method_of(path), target) for target in raw]
    return found + [(method, path.encode()) for method in METHODS]


@pytest.fixture(scope="module")
def port(served):
    with running(served[1], LIMITS, token="s3cret") as made:
        yield made


@pytest.fixture(scope="module")
def public(port):
    """What may be read without the token."""
    found = [ask(port, request(path)) for path in PUBLIC]
    assert [status for status, _ in found] == [200] * 4
    return {b"", *(body for _, body in found)}


def is_refusal(status, body):
    """Whether an answer holds nothing but its reason."""
    if status == 400 and body == b"Invalid HTTP request received.":
        return True
    return status in (0, 400, 401, 404, 405, 421) and (
        not body or set(json.loads(body)) == {"error"}
    )


@pytest.mark.parametrize("path", PRIVATE)
def test_only_public_content_comes_without_the_token(port, public, path):
    tried = spellings(path)
    assert len(set(tried)) >= 50
    for method, target in tried:
        status, body = ask(port, request(target, method))
        assert body in public or is_refusal(status, body), (method, target, status, body[:80])
    assert ask(port, request(path, method_of(path)))[0] == 401


@pytest.mark.parametrize("path", PRIVATE)
def test_headers_lead_nowhere_else(port, public, path):
    for header in (
        f"X-Original-URL: {path}", f"X-Rewrite-URL: {path}", f"X-Forwarded-Prefix: {path}",
        f"X-Forwarded-Path: {path}", f"X-HTTP-Method-Override: {method_of(path)}",
        "Authorization: Bearer",
        "Authorization: Bearer ", "Authorization: bearer s3cret", "Authorization: s3cret",
        f"{TOKEN}\r\nAuthorization: Bearer wrong", "X-Authorization: Bearer s3cret",
        "Proxy-Authorization: Bearer s3cret", "Cookie: token=s3cret", f"A: b\r\n {TOKEN}",
    ):  # fmt: skip
        for target in ("/", "/ready", path, f"{path}%0A"):
            status, body = ask(port, request(target, "GET", header))
            assert body in public or is_refusal(status, body), (target, header, status)


def test_the_token_lets_the_same_paths_through(port, rows):
    """So the tests above ask for what is there."""
    for path in PRIVATE[1:]:
        for end in ("", "%0A", "?a=1"):
            status, body = ask(port, request(path + end, "GET", TOKEN))
            assert status == 200 and len(body) > 100, path + end
    body = json.dumps({"events": rows[:1]}).encode()
    more = (TOKEN, "Content-Type: application/json")
    assert ask(port, request(URL, "POST", *more, body=body))[0] == 200
