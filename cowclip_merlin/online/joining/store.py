"""The state of a join in a SQLite file: impressions, clicks that wait, and the progress."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cowclip_merlin.errors import InputError
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
_FORMAT = 1
_CACHE_KILOBYTES = 65_536
_KEYS_AT_ONCE = 500
_DISK = "check the disk and its free space; the same command then goes on"
_REMEDIES = {
    "locked": "end the other process, or give another `state`",
    "unable to open": "check the path and its permissions, or give another `state`",
    "readonly": "check the path and its permissions, or give another `state`",
    "disk is full": _DISK,
    "disk I/O error": _DISK,
}
"""What to say after SQLite's own words, by a part of them."""


class JoinStore:
    """One state file. All changes of a `transaction` are there after a crash, or none of them.

    Args:
        file: to open or to make.

    Raises:
        InputError: the file is not a state, cannot be opened, or another process has it open; later
            also: it cannot be written.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
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
        with self.transaction():
            (version,) = run("PRAGMA user_version").fetchone()
            if version == 0 and not run("SELECT 1 FROM sqlite_master").fetchone():
                for statement in _TABLES.split(";")[:-1]:
                    run(statement)
                run(f"PRAGMA user_version = {_FORMAT}")
            elif version != _FORMAT:
                raise sqlite3.DatabaseError("of another program")

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

    def progress(self) -> tuple[JsonObject | None, bytes]:
        """Return what `save_progress` wrote last; None and no outbox in a new state."""
        row = self._db.execute("SELECT progress, outbox FROM progress").fetchone()
        return (json.loads(row[0]), row[1]) if row else (None, b"")

    def save_progress(self, progress: JsonObject, outbox: bytes) -> None:
        """Keep positions and counts, and the examples of this transaction."""
        self._db.execute("DELETE FROM progress")
        self._db.execute("INSERT INTO progress VALUES (?, ?)", (json.dumps(progress), outbox))

    def newest_impressions(self, keys: Sequence[str]) -> dict[str, int]:
        """Key -> time of its newest impression, for those keys that have one."""
        return dict(self._for_keys("SELECT key, max(time) FROM impressions", keys, "GROUP BY key"))

    def impressions(self, keys: Sequence[str]) -> Iterator[Row]:
        """Row number, key, time, status and value of the impressions of some keys."""
        columns = "SELECT rowid, key, time, status, value"
        return self._for_keys(f"{columns} FROM impressions", keys)

    def waiting_clicks(self, keys: Sequence[str]) -> Iterator[Row]:
        """Row number, key and time of the waiting clicks of some keys."""
        if self._db.execute("SELECT 1 FROM clicks LIMIT 1").fetchone() is None:
            return iter(())
        return self._for_keys("SELECT rowid, key, time FROM clicks", keys)

    def _for_keys(self, select: str, keys: Sequence[str], end: str = "") -> Iterator[Row]:
        for first in range(0, len(keys), _KEYS_AT_ONCE):
            part = keys[first : first + _KEYS_AT_ONCE]
            marks = ",".join("?" * len(part))
            yield from self._db.execute(f"{select} WHERE key IN ({marks}) {end}", part)

    def add_impressions(self, rows: Iterable[Row]) -> None:
        """Add impressions: key, time, status, value."""
        self._db.executemany("INSERT INTO impressions VALUES (?, ?, ?, ?)", rows)

    def set_status(self, rows: Iterable[Row]) -> None:
        """Set the status and value of impressions: status, value, row number."""
        self._db.executemany("UPDATE impressions SET status = ?, value = ? WHERE rowid = ?", rows)

    def add_clicks(self, rows: Iterable[Row]) -> None:
        """Let clicks wait for their impression: key, time."""
        self._db.executemany("INSERT INTO clicks VALUES (?, ?)", rows)

    def remove_clicks(self, numbers: Iterable[int]) -> None:
        """Remove waiting clicks by their row numbers."""
        self._db.executemany("DELETE FROM clicks WHERE rowid = ?", ((n,) for n in numbers))

    def ending(self, since: int, before: int) -> list[Row]:
        """Row number, key, time, status and value of impressions without a click in the window.

        Args:
            since: of their times.
            before: end of their times.
        """
        return self._db.execute(
            "SELECT rowid, key, time, status, value FROM impressions "
            f"WHERE time >= ? AND time < ? AND status != {CLICKED} ORDER BY time, rowid",
            (since, before),
        ).fetchall()

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
