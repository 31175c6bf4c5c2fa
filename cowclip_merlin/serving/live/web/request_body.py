"""Read a request's body within limits, and its events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, NoReturn

from cowclip_merlin.online.events.requests import encode_requests
from cowclip_merlin.serving.live.web.limits import ServingLimits
from cowclip_merlin.serving.live.web.refusal import Refusal
from cowclip_merlin.types import Json, JsonObject

if TYPE_CHECKING:
    from cowclip_merlin.online.events.events import Events
    from cowclip_merlin.online.events.features import LogFeatures

MOST_REASONS = 20
"""Damaged events that an answer names."""

_CLOSE = {"Connection": "close"}  # the rest of the body is not read


async def read_body(
    headers: Mapping[str, str], parts: AsyncIterator[bytes], limits: ServingLimits
) -> bytes:
    """Read a body of JSON.

    Args:
        headers: of the request; names in any case.
        parts: of the body, as they come.
        limits: of its size.

    Raises:
        Refusal: it is not JSON by its headers, or too large.
    """
    _check_type(headers)
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdecimal()) or len(length) > 19:
        raise Refusal(400, f"Content-Length {length!a:.30} is not a number", headers=_CLOSE)
    if int(length) > limits.max_body_bytes:
        raise _too_large(limits)
    body = bytearray()
    async for part in parts:
        body += part
        if len(body) > limits.max_body_bytes:
            raise _too_large(limits)
    return bytes(body)


def _too_large(limits: ServingLimits) -> Refusal:
    text = f"the body is larger than {limits.max_body_bytes} bytes; send fewer events at once"
    return Refusal(413, text, headers=_CLOSE)


def _check_type(headers: Mapping[str, str]) -> None:
    kind, _, parameters = headers.get("content-type", "").partition(";")
    charset = parameters.strip().lower().replace('"', "")
    if kind.strip().lower() != "application/json" or charset not in ("", "charset=utf-8"):
        given = headers.get("content-type", "none")
        text = f"Content-Type is {given!a:.60}; send application/json in UTF-8"
        raise Refusal(415, text, headers=_CLOSE)
    coding = headers.get("content-encoding", "identity")
    if coding.strip().lower() != "identity":
        text = f"Content-Encoding is {coding!a:.60}; send the body as it is"
        raise Refusal(415, text, headers=_CLOSE)


def events_of(body: bytes, features: LogFeatures, limits: ServingLimits) -> Events:
    """Decode the events of a body.

    Args:
        body: JSON: `{"events": [{column: value, ...}, ...]}`.
        features: the columns.
        limits: of their number.

    Raises:
        Refusal: it is anything else, or an event is damaged.
    """
    rows = _rows(_json(body), limits)
    encoded = encode_requests(rows, features)
    if encoded.damaged:
        found = sorted(encoded.damaged.items())
        first, reason = found[0]
        more = f", and {len(found) - 1} more events are damaged" if len(found) > 1 else ""
        text = f"event {first}: {reason}{more}; nothing was scored"
        raise Refusal(422, text, events=found[:MOST_REASONS])
    return encoded.events


def _json(body: bytes) -> Json:
    if not body:
        raise Refusal(400, 'the body is empty; send {"events": [...]}')
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise Refusal(400, f"the body is not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise Refusal(400, "the body is nested too deeply") from None
    except ValueError as error:  # JSONDecodeError, or a number with thousands of digits
        raise Refusal(400, f"the body is not JSON: {error!s:.100}") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number; use null for a missing value")


def _rows(content: Json, limits: ServingLimits) -> list[JsonObject]:
    """The events, each an object."""
    if not isinstance(content, dict) or "events" not in content:
        raise Refusal(422, 'the body has no "events"; send {"events": [{column: value, ...}, ...]}')
    rows = content["events"]
    if not isinstance(rows, list):
        raise Refusal(422, f"events is {_kind(rows)}; send a list of objects")
    if not rows:
        raise Refusal(422, "events is empty; send at least one")
    if len(rows) > limits.max_batch:
        raise Refusal(413, f"{len(rows)} events in one request; send {limits.max_batch} at most")
    for i, row in enumerate(rows):
        if not isinstance(row, dict):
            reason = f"is {_kind(row)}; send an object {{column: value, ...}}"
            raise Refusal(422, f"event {i} {reason}", events=[(i, reason)])
    return rows


def _kind(value: Json) -> str:
    """What a JSON value is, in words."""
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
    return "null" if value is None else names.get(type(value), "a number")
