"""The state of a join in a SQLite file: impressions, clicks that wait, and the progress.

Any SQLite that Python 3.10 may come with knows these statements: no `RETURNING` (3.35).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.joining.settings import JoinSettings
from cowclip_merlin.types import JsonObject

NO_CLICK, CLICKED, LATE_CLICK = 0, 1, 2
"""Status of an impression. LATE_CLICK: after the window; its example is written at the end."""

Row = tuple[Any, ...]

_TABLES = """
CREATE TABLE impressions (key TEXT NOT NULL, time INTEGER NOT NULL, status INTEGER NOT NULL,
                          value BLOB);
CREATE INDEX impression_keys ON impressions (key);
CREATE INDEX impression_times ON impressions (time);
CREATE TABLE clicks (key TEXT NOT NULL, time INTEGER NOT NULL);
CREATE INDEX click_keys ON clicks (key);
CREATE INDEX click_times ON clicks (time);
CREATE TABLE progress (progress TEXT NOT NULL, outbox BLOB NOT NULL);
"""
_ARRIVED = """
CREATE TEMP TABLE arrived (key TEXT NOT NULL, time INTEGER NOT NULL, waited INTEGER,
                           impression INTEGER)
"""
"""Clicks that are being matched, in their order: the row of `clicks` in which one has waited, and
that of the impression that it belongs to."""

_FORMAT = 2
_CACHE_KILOBYTES = 65_536
_BETWEEN = b"\x1e"  # messages of the outbox: no JSON has this character but as an escape
_DISK = "check the disk and its free space; the same command then goes on"
_REMEDIES = {
    "locked": "end the other process, or give another `state`",
    "unable to open": "check the path and its permissions, or give another `state`",
    "readonly": "check the path and its permissions, or give another `state`",
    "disk is full": _DISK,
    "disk I/O error": _DISK,
}
"""What to say after SQLite's own words, by a part of them."""


@dataclass
class JoinCounts:
    """Numbers of messages and examples since the state was made.

    Attributes:
        impressions: messages of the impressions log, all of them.
        clicks: messages of the actions log, all of them.
        damaged_impressions: set aside.
        damaged_clicks: set aside.
        repeated_impressions: whose key was there before.
        repeated_clicks: on an impression that has its click already.
        early_clicks: whose time is before that of their impression.
        clicks_without_impression: which no impression came for.
        positives: examples of impressions with a click in the window.
        late_positives: examples of impressions with a click after the window only.
        negatives: examples of impressions without a click in the window.
        dropped_negatives: such impressions that the sampling left out.
    """

    impressions: int = 0
    clicks: int = 0
    damaged_impressions: int = 0
    damaged_clicks: int = 0
    repeated_impressions: int = 0
    repeated_clicks: int = 0
    early_clicks: int = 0
    clicks_without_impression: int = 0
    positives: int = 0
    late_positives: int = 0
    negatives: int = 0
    dropped_negatives: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return the numbers by name."""
        return asdict(self)

    def summary(self) -> str:
        """Return all of them that are not 0, in words.

        >>> JoinCounts(impressions=1200, negatives=7).summary()
        '1,200 impressions, 7 negatives'
        """
        words = (f"{n:,} {name.replace('_', ' ')}" for name, n in self.as_dict().items() if n)
        return ", ".join(words) or "no messages"


class JoinState:
    """One state file. All changes of a `transaction` are there after a crash, or none of them.

    Args:
        file: to open or to make.
        settings: which impressions are repeats, and which clicks belong to an impression.

    Raises:
        InputError: the file is not a state, cannot be opened, or another process has it open; later
            also: it cannot be written.
    """

    def __init__(self, file: Path, settings: JoinSettings) -> None:
        self._file, self._settings = file, settings
        self._is_repeat = (
            "EXISTS (SELECT 1 FROM impressions e WHERE e.key = i.key AND e.rowid < i.rowid "
            f"AND e.time >= i.time - {settings.kept})"
        )
        if not file.parent.is_dir():
            raise InputError(f"{file.parent}: no such folder; make it first")
        if file.is_dir():
            raise InputError(f"{file}: is a folder; give `state` a file")
        with self._errors():
            # Transactions begin and end in `transaction` only.
            self._db = sqlite3.connect(file, timeout=0, isolation_level=None)
        try:
            with self._errors():
                self._set_up()
        except BaseException:
            self._db.close()
            raise

    def _set_up(self) -> None:
        run = self._db.execute
        run("PRAGMA locking_mode = EXCLUSIVE")
        run("PRAGMA journal_mode = WAL")
        # Without a sync at each commit: a power failure may cost the newest transactions, and the
        # join then writes their examples again. A killed process costs nothing.
        run("PRAGMA synchronous = NORMAL")
        run(f"PRAGMA cache_size = -{_CACHE_KILOBYTES}")
        run("PRAGMA temp_store = MEMORY")
        with self.transaction():
            (version,) = run("PRAGMA user_version").fetchone()
            if version == 0 and not run("SELECT 1 FROM sqlite_master").fetchone():
                for statement in _TABLES.split(";")[:-1]:
                    run(statement)
                run(f"PRAGMA user_version = {_FORMAT}")
            elif version != _FORMAT:
                raise sqlite3.DatabaseError("of another program")
            run(_ARRIVED)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Keep all changes of the block, or none if it fails.

        Raises:
            InputError: the file cannot be written, for example as the disk is full.
        """
        with self._errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _belongs(self, clicks: str) -> str:
        """Whether a click of a table belongs to the impression i, of which there is one at most."""
        since, until = self._settings.lateness, self._settings.clicks_until
        return (
            f"{clicks}.key = i.key AND {clicks}.time BETWEEN i.time - {since} AND i.time + {until}"
        )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Tell what is wrong with the file in one line; errors of this program stay as they are."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            remedy = next((text for part, text in _REMEDIES.items() if part in str(error)), None)
            if remedy:
                raise InputError(f"{self._file}: {error}; {remedy}") from None
            if type(error) is not sqlite3.DatabaseError:  # such as wrong SQL
                raise
            raise InputError(
                f"{self._file}: is not the state of a join; give another `state`"
            ) from None

    def progress(self) -> tuple[JsonObject | None, list[bytes]]:
        """Return what `save_progress` wrote last; None and no examples in a new state."""
        row = self._db.execute("SELECT progress, outbox FROM progress").fetchone()
        if row is None:
            return None, []
        return json.loads(row[0]), row[1].split(_BETWEEN) if row[1] else []

    def save_progress(self, progress: JsonObject, examples: Sequence[bytes]) -> None:
        """Keep positions and counts, and the examples of this transaction."""
        self._db.execute("DELETE FROM progress")
        row = json.dumps(progress), _BETWEEN.join(examples)
        self._db.execute("INSERT INTO progress VALUES (?, ?)", row)

    def add_impressions(self, rows: Sequence[Row]) -> tuple[int, int]:
        """Add impressions that are no repeats; clicks that have waited for them arrive.

        Args:
            rows: key, time and message.

        Returns:
            How many were added, and the number of the last row before them.
        """
        run, run_many = self._db.execute, self._db.executemany
        (last,) = run("SELECT ifnull(max(rowid), 0) FROM impressions").fetchone()
        run_many(f"INSERT INTO impressions VALUES (?, ?, {NO_CLICK}, ?)", rows)
        # One after the other: what follows a repeat counts if it is far enough from the first one.
        found = f"SELECT rowid FROM impressions i WHERE rowid > ? AND {self._is_repeat}"
        repeats = run(f"{found} ORDER BY rowid", (last,)).fetchall()
        removed = f"DELETE FROM impressions AS i WHERE rowid = ? AND {self._is_repeat}"
        added = len(rows) - run_many(removed, repeats).rowcount
        run("DELETE FROM arrived")
        if run("SELECT 1 FROM clicks LIMIT 1").fetchone():
            run(
                "INSERT INTO arrived SELECT clicks.key, clicks.time, clicks.rowid, i.rowid "
                "FROM impressions i CROSS JOIN clicks "
                f"WHERE i.rowid > ? AND {self._belongs('clicks')} "
                "ORDER BY i.rowid, clicks.time, clicks.rowid",
                (last,),
            )
            run("DELETE FROM clicks WHERE rowid IN (SELECT waited FROM arrived)")
        return added, last

    def add_clicks(self, rows: Iterable[Row]) -> None:
        """Let clicks arrive: key and time. Those without an impression wait for it."""
        self._db.execute("DELETE FROM arrived")
        self._db.executemany("INSERT INTO arrived (key, time) VALUES (?, ?)", rows)
        found = f"SELECT i.rowid FROM impressions i WHERE {self._belongs('arrived')}"
        self._db.execute(f"UPDATE arrived SET impression = ({found})")
        self._db.execute(
            "INSERT INTO clicks SELECT key, time FROM arrived WHERE impression IS NULL"
        )

    def clicked(self, over: int) -> list[Row]:
        """Return the impressions of the clicks that have arrived, in the order of these clicks.

        Args:
            over: of impressions before it, every click makes a positive; of others, those in the
                window.

        Returns:
            Row number, time, status and message of each impression; the number of its clicks, and
            of those before its time; the first click that makes a positive, and its time.
        """
        return self._db.execute(
            "SELECT i.rowid, i.time, i.status, i.value, count(*), sum(c.time < i.time), "
            f"min(CASE WHEN c.time <= i.time + {self._settings.window} OR i.time < ? "
            "THEN c.rowid END) AS first, c.time "  # of the row with the minimum, says SQLite
            "FROM arrived c CROSS JOIN impressions i ON i.rowid = c.impression "
            "GROUP BY i.rowid ORDER BY first",
            (over,),
        ).fetchall()

    def set_status(self, rows: Iterable[Row]) -> None:
        """Set the status and message of impressions: status, message, row number."""
        self._db.executemany("UPDATE impressions SET status = ?, value = ? WHERE rowid = ?", rows)

    def end_windows(self, since: int, before: int) -> list[Row]:
        """End the windows of impressions that have no click in them.

        Args:
            since: of their times.
            before: end of their times.

        Returns:
            Key, time, status so far and message of each.
        """
        return self._end("", "time >= ? AND time < ?", since, before)

    def end_windows_after(self, row: int, before: int) -> list[Row]:
        """As `end_windows`, of the impressions after a row, from any time on."""
        return self._end("NOT INDEXED", "rowid > ? AND time < ?", row, before)

    def _end(self, index: str, which: str, *bounds: int) -> list[Row]:
        found = self._db.execute(
            f"SELECT key, time, status, value FROM impressions {index} "
            f"WHERE {which} AND status != {CLICKED} ORDER BY time, rowid",
            bounds,
        ).fetchall()
        self._db.execute(
            f"UPDATE impressions {index} SET status = {CLICKED}, value = NULL "
            f"WHERE {which} AND status = {LATE_CLICK}",
            bounds,
        )
        return found

    def time_of(self, number: int, since: int) -> int | None:
        """Return the time of the impression after so many, from a time on; None if there is none.

        Args:
            number: impressions before it.
            since: time from which on they count.
        """
        row = self._db.execute(
            "SELECT time FROM impressions WHERE time >= ? ORDER BY time LIMIT 1 OFFSET ?",
            (since, number),
        ).fetchone()
        return row[0] if row else None

    def forget_impressions(self, before: int) -> None:
        """Remove the impressions before a time."""
        self._db.execute("DELETE FROM impressions WHERE time < ?", (before,))

    def forget_clicks(self, before: int) -> int:
        """Remove the waiting clicks before a time; return how many there were."""
        return self._db.execute("DELETE FROM clicks WHERE time < ?", (before,)).rowcount

    def sizes(self) -> tuple[int, int]:
        """Numbers of impressions and of waiting clicks."""
        tables = ("impressions", "clicks")
        return tuple(self._db.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in tables)

    def close(self) -> None:
        """Close the file; nothing else may be called afterwards."""
        self._db.close()
