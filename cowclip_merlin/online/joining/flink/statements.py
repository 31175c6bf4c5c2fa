"""The join of impressions and clicks as Flink SQL.

Two joins over a time interval: an outer one for positives and negatives, and an inner one for late
positives. `ROW_NUMBER() = 1` by event time drops repeats. The planner makes a plan of inserts only
of this, and a join forgets its rows by event time.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.joining.settings import JoinSettings

if TYPE_CHECKING:
    from cowclip_merlin.online.events.features import LogFeatures

_NAME = re.compile(r"[\w .-]+", re.ASCII)
_MOST_DAYS = 99  # of an interval in Flink SQL
_KAFKA = re.compile(r"kafka://([^/]+)/([^/]+)")


def source_table(name: str, url: str, features: LogFeatures, lateness: int, *, ends: bool) -> str:
    """Return the statement that declares a message log with key and event time.

    A message without key or time has the time 1970 and no key, and the view drops it.

    Args:
        name: of the table.
        url: a folder of files with one message per line, or kafka://HOST:PORT/TOPIC.
        features: names of the key and time columns.
        lateness: by how much messages may be out of order, in seconds.
        ends: whether to read what is there now only.
    """
    key, time = _value_of(features.key), _value_of(features.time)
    # Flink drops a row at the watermark itself, so that has to be one millisecond less.
    return f"""CREATE TABLE {name} (
  message STRING,
  request AS CASE WHEN TRY_CAST({time} AS DOUBLE) >= 0 THEN {key} END,
  rt AS TO_TIMESTAMP_LTZ(
    COALESCE(CAST(FLOOR(TRY_CAST({time} AS DOUBLE)) AS BIGINT), 0) * 1000, 3),
  WATERMARK FOR rt AS rt - {_interval(lateness, milliseconds=1)}
) WITH ({_options(url, ends=ends)})"""


def without_repeats(view: str, table: str) -> str:
    """Return the statement of a view of the first message of each key by event time."""
    return f"""CREATE VIEW {view} AS SELECT message, request, rt FROM (
  SELECT message, request, rt,
    ROW_NUMBER() OVER (PARTITION BY request ORDER BY rt ASC) AS place
  FROM {table} WHERE request IS NOT NULL AND request <> ''
) WHERE place = 1"""


def sink_table(name: str, url: str) -> str:
    """Return the statement that declares the log of examples.

    Args:
        name: of the table.
        url: a folder to write files with one example per line, or kafka://HOST:PORT/TOPIC.
    """
    return f"CREATE TABLE {name} (example STRING) WITH ({_options(url, ends=True)})"


def join_statement(
    settings: JoinSettings, features: LogFeatures, *, impressions: str, clicks: str, to: str
) -> str:
    """Return the statement that joins two views into a table of examples.

    Args:
        settings: of the join.
        features: name of the label column.
        impressions: view of the impressions.
        clicks: view of the clicks.
        to: table of the examples.
    """
    window, until, early = settings.window, settings.clicks_until, settings.lateness
    positive, negative = (_example(settings, features, label) for label in (1, 0))
    late = f"""
UNION ALL
SELECT {_example(settings, features, 1, late=True)} FROM {impressions} AS i JOIN {clicks} AS c
  ON i.request = c.request
  AND c.rt BETWEEN i.rt + {_interval(window + 1)} AND i.rt + {_interval(until)}"""
    return f"""INSERT INTO {to}
SELECT CASE WHEN c.request IS NULL THEN {negative} ELSE {positive} END
FROM {impressions} AS i LEFT JOIN {clicks} AS c
  ON i.request = c.request
  AND c.rt BETWEEN i.rt - {_interval(early)} AND i.rt + {_interval(window)}
WHERE c.request IS NOT NULL OR {_is_kept(settings)}{late if settings.late else ""}"""


def _is_kept(settings: JoinSettings) -> str:
    """Whether a negative is kept, as `JoinSettings.keeps_negative` says."""
    limit = settings.hash_limit
    if limit is None:
        return "TRUE"
    start = f"SUBSTRING(SHA256('{settings.seed}:' || i.request), 1, {len(limit)})"
    return f"{start} < '{limit}'"


def _example(
    settings: JoinSettings, features: LogFeatures, label: int, *, late: bool = False
) -> str:
    """The message of the impression with further columns in place of its closing brace."""
    end = settings.example_end(_named(features.label), label, late=late)
    return f"REGEXP_REPLACE(i.message, '\\s*\\}}\\s*$', '{end}')"


def _interval(seconds: int, *, milliseconds: int = 0) -> str:
    """A duration of less than 100 days.

    >>> _interval(90_061)
    "INTERVAL '1 01:01:01.000' DAY TO SECOND(3)"
    """
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    day, hour = divmod(hours, 24)
    if day > _MOST_DAYS:
        raise InputError(f"a time of {day} days: the Flink join takes {_MOST_DAYS} at most")
    clock = f"{hour:02d}:{minute:02d}:{second:02d}.{milliseconds:03d}"
    return f"INTERVAL '{day} {clock}' DAY TO SECOND(3)"


def _value_of(column: str | None) -> str:
    """A column of a message as text, or NULL if it is missing."""
    return f"JSON_VALUE(message, '$[''{_named(column)}'']')"


def _named(column: str | None) -> str:
    """Return the name of a column.

    Raises:
        InputError: a JSON path or a text of Flink SQL would need escapes in it.
    """
    if column is None or not _NAME.fullmatch(column):
        raise InputError(
            f"column {column!r}: the Flink join needs names of letters, digits, spaces, . and -"
        )
    return column


def _options(url: str, *, ends: bool) -> str:
    """How Flink reads or writes a log."""
    if "'" in url:
        raise InputError(f"{url}: holds a quote, which the Flink join cannot write; rename it")
    if kafka := _KAFKA.fullmatch(url):
        options = {
            "connector": "kafka",
            "properties.bootstrap.servers": kafka[1],
            "topic": kafka[2],
            "scan.startup.mode": "earliest-offset",
        }
        options |= {"scan.bounded.mode": "latest-offset"} if ends else {}
    elif "://" in url:
        raise InputError(f"{url}: the Flink join takes a folder or kafka://HOST:9092/TOPIC")
    else:
        options = {"connector": "filesystem", "path": Path(url).resolve().as_uri()}
        options |= {} if ends else {"source.monitor-interval": "1 s"}
    options |= {"format": "raw"}
    return ", ".join(f"'{name}' = '{value}'" for name, value in options.items())
