"""Answers to requests that are wrong, or that cannot be answered now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cowclip_merlin.types import JsonObject


class Refusal(Exception):
    """A request that gets an error.

    Attributes:
        status: HTTP status.
        text: one line: what is wrong, and what to do.
        headers: of the response.
        events: (number of the event from 0, reason) of each damaged event.
    """

    def __init__(
        self,
        status: int,
        text: str,
        *,
        headers: Mapping[str, str] | None = None,
        events: Sequence[tuple[int, str]] = (),
    ) -> None:
        super().__init__(text)
        self.status, self.text, self.headers, self.events = status, text, headers, events

    def content(self) -> JsonObject:
        """Return the body of the response."""
        content: JsonObject = {"error": " ".join(self.text.split())}
        if self.events:
            content["events"] = [{"event": i, "reason": reason} for i, reason in self.events]
        return content


def not_now(text: str, seconds: int = 1) -> Refusal:
    """A refusal of a request that may succeed if it is sent again in some seconds."""
    return Refusal(503, text, headers={"Retry-After": str(seconds)})
