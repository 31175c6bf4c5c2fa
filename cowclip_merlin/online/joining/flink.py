"""The same join as a Flink SQL job, for streams that one process cannot read.

Two joins over a time interval: an outer one for positives and negatives, and an inner one for late
positives. `ROW_NUMBER() = 1` by event time drops repeats. The planner makes a plan of inserts only
of this, and a join forgets its rows by event time.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from cowclip_merlin.addresses import FilePath
from cowclip_merlin.errors import InputError, StackError
from cowclip_merlin.online.events.features import load_features
from cowclip_merlin.online.joining.settings import JoinSettings
from cowclip_merlin.online.logs.open_log import refuse_one_log
from cowclip_merlin.targets import refuse_several

if TYPE_CHECKING:
    from pyflink.table import TableEnvironment

    from cowclip_merlin.online.events.features import LogFeatures

CHECKPOINT_EVERY = "1 s"

_NAME = re.compile(r"[\w .-]+", re.ASCII)
_MOST_DAYS = 99  # of an interval in Flink SQL
_KAFKA = re.compile(r"kafka://([^/]+)/([^/]+)")


def join_on_flink(
    impressions: str,
    actions: str,
    to: str,
    features: str | FilePath,
    settings: JoinSettings,
    *,
    checkpoints: str | Path,
    until_end: bool = False,
) -> None:
    """Join two logs on Flink. It goes on from the newest checkpoint, if there is one.

    Args:
        impressions: log of impressions; a folder of files with one message per line, or
            kafka://HOST:PORT/TOPIC.
        actions: log of clicks, like `impressions`.
        to: log of examples to write, like `impressions`.
        features: features file with a key.
        settings: of the join.
        checkpoints: folder for Flink's checkpoints.
        until_end: stop where both logs end now, and end all windows.

    Raises:
        InputError: an input is wrong.
        StackError: PyFlink or Java is missing.
    """
    columns = load_features(features)
    remedy = "write examples with all labels to the topic that the trainer reads"
    refuse_several("cowclip online join", columns.targets, remedy)
    if columns.key is None:
        raise InputError(f"{features}: no `key`; name the column that identifies a request")
    refuse_one_log(impressions=impressions, actions=actions, to=to)
    *declarations, join = statements(
        impressions, actions, to, columns, settings, until_end=until_end
    )
    tables = _environment(settings, Path(checkpoints))
    for statement in declarations:
        tables.execute_sql(statement)
    tables.execute_sql(join).wait()


def explain(features: LogFeatures, settings: JoinSettings, folder: Path) -> str:
    """Return Flink's plan of the join of two folders, with the kinds of changes."""
    from pyflink.table import ExplainDetail

    urls = [str(folder / name) for name in ("impressions", "actions", "examples")]
    *declarations, join = statements(*urls, features, settings, until_end=True)
    tables = _environment(settings, folder / "checkpoints")
    for statement in declarations:
        tables.execute_sql(statement)
    return tables.explain_sql(join, ExplainDetail.CHANGELOG_MODE)


def _environment(settings: JoinSettings, checkpoints: Path) -> TableEnvironment:
    """A table environment with checkpoints, from the newest one if there is one."""
    try:
        from pyflink.table import EnvironmentSettings, TableEnvironment
    except ImportError:
        raise StackError(
            "PyFlink is not installed; `make flink-check` makes an environment with it, or run "
            "pip install apache-flink==2.3.0 in one without TensorFlow"
        ) from None
    if shutil.which("java") is None:
        raise StackError(
            "java is not installed; Flink needs Java 17 (Debian: openjdk-17-jre-headless)"
        )
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for name, value in _configuration(settings, checkpoints).items():
        tables.get_config().set(name, value)
    return tables


def _configuration(settings: JoinSettings, checkpoints: Path) -> dict[str, str]:
    # Only the keys that were seen are forgotten by the clock; joins forget by event time.
    found = {
        "table.local-time-zone": "UTC",
        "table.exec.source.idle-timeout": f"{max(round(1000 * settings.idle), 1)} ms",
        "table.exec.state.ttl": f"{settings.kept} s",
        "execution.checkpointing.interval": CHECKPOINT_EVERY,
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.dir": checkpoints.resolve().as_uri(),
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    }
    if newest := newest_checkpoint(checkpoints):
        found["execution.state-recovery.path"] = newest.resolve().as_uri()
    return found


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint in a folder; None without one."""
    complete = folder.glob("*/chk-*/_metadata")
    newest = max(complete, key=lambda file: file.stat().st_mtime_ns, default=None)
    return newest and newest.parent


def example_files(folder: Path) -> list[Path]:
    """Return the files of examples that Flink has completed: hidden ones are still being written.

    Args:
        folder: that the join writes to.
    """
    files = (file for file in folder.rglob("*") if file.is_file())
    return sorted(f for f in files if not any(p.startswith((".", "_")) for p in f.parts[-2:]))


def statements(
    impressions: str,
    actions: str,
    to: str,
    features: LogFeatures,
    settings: JoinSettings,
    *,
    until_end: bool,
) -> list[str]:
    """Return the statements of the job: the last one joins, those before it declare its tables.

    Arguments as for `join_on_flink`, with the columns that a features file names.
    """
    found = []
    for view, url in {"impressions": impressions, "clicks": actions}.items():
        found.append(_source(f"all_{view}", url, features, settings.lateness, ends=until_end))
        found.append(_without_repeats(view, f"all_{view}"))
    return [*found, _sink(to), _join(settings, features)]


def _source(name: str, url: str, features: LogFeatures, lateness: int, *, ends: bool) -> str:
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


def _without_repeats(view: str, table: str) -> str:
    """Return the statement of a view of the first message of each key by event time."""
    return f"""CREATE VIEW {view} AS SELECT message, request, rt FROM (
  SELECT message, request, rt,
    ROW_NUMBER() OVER (PARTITION BY request ORDER BY rt ASC) AS place
  FROM {table} WHERE request IS NOT NULL AND request <> ''
) WHERE place = 1"""


def _sink(url: str) -> str:
    """Return the statement that declares the log of examples."""
    return f"CREATE TABLE examples (example STRING) WITH ({_options(url, ends=True)})"


def _join(settings: JoinSettings, features: LogFeatures) -> str:
    """Return the statement that joins the views of impressions and clicks into examples."""
    window, until, early = settings.window, settings.clicks_until, settings.lateness
    positive, negative = (_example(settings, features, label) for label in (1, 0))
    late = f"""
UNION ALL
SELECT {_example(settings, features, 1, late=True)} FROM impressions AS i JOIN clicks AS c
  ON i.request = c.request
  AND c.rt BETWEEN i.rt + {_interval(window + 1)} AND i.rt + {_interval(until)}"""
    return f"""INSERT INTO examples
SELECT CASE WHEN c.request IS NULL THEN {negative} ELSE {positive} END
FROM impressions AS i LEFT JOIN clicks AS c
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
