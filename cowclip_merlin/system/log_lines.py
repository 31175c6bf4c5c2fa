"""Lines of logs, as text or as JSON."""

from __future__ import annotations

import json
import logging
import math
from datetime import datetime, timezone

from cowclip_merlin.types import Json, JsonObject

FORMATS = ("text", "json")
"""Forms of a line."""


class JsonFormatter(logging.Formatter):
    """Write each record as one JSON object.

    The object has `time` (ISO 8601, UTC), `level`, `logger` and `message`. `values` has the numbers
    of the line, if the call gave them as `extra={"values": ...}`. A number that is not finite is
    null.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the JSON of a record."""
        time = datetime.fromtimestamp(record.created, timezone.utc)
        entry: JsonObject = {
            "time": time.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if values := getattr(record, "values", None):
            entry["values"] = {name: _plain(value) for name, value in values.items()}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def _plain(value: Json) -> Json:
    """Return a value as JSON has it.

    >>> _plain(float("nan")), _plain(2.5), _plain("x")
    (None, 2.5, 'x')
    """
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def formatter(log_format: str, text: str) -> logging.Formatter:
    """Return what formats lines.

    Args:
        log_format: one of `FORMATS`.
        text: the format of text, with the names of `logging`.
    """
    return JsonFormatter() if log_format == "json" else logging.Formatter(text)
