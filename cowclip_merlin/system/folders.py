"""The folder that a command writes: what it holds, who has it, and what a failure leaves."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

from cowclip_merlin.errors import InputError

RESULTS_CSV, REPLAYS_CSV, COLLISIONS_CSV = "results.csv", "replays.csv", "collisions.csv"
RESULT_TABLES = (RESULTS_CSV, REPLAYS_CSV, COLLISIONS_CSV)
"""Tables that experiments write to their results folder, one for each type of run."""

RESULTS, SEARCH = "results of experiments", "a search of cowclip tune"
PREPARED, RUN = "prepared data", "a run"
LOCK = ".lock"
"""File of a folder on a disk without locks: which process has it."""
_MARKS = {
    RESULTS: RESULT_TABLES,
    SEARCH: ("study.db",),
    PREPARED: ("dataset.json",),
    RUN: ("config.json",),
}
"""What a folder may hold -> files of which one shows it."""


def holds(folder: Path, content: str) -> bool:
    """Whether a folder holds `RESULTS`, a `SEARCH`, a `PREPARED` log or a `RUN`."""
    return any((folder / name).exists() for name in _MARKS[content])


def inside(folder: Path, *, besides: Collection[str] = ()) -> tuple[str, Path] | None:
    """Return what a folder below a folder holds, and that folder; None if none holds anything.

    Entries of the folder with the names `besides` do not count.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "run").mkdir()
    >>> (folder / "run/config.json").touch()
    >>> inside(folder) == (RUN, folder / "run"), inside(folder / "run")
    (True, None)
    """
    for content, names in _MARKS.items():
        for name in names:
            for file in folder.rglob(name):
                if file.parent != folder and file.relative_to(folder).parts[0] not in besides:
                    return content, file.parent
    return None


def check_out(out: Path, others: Iterable[str], remedy: str = "use another `out`") -> None:
    """Refuse to write where other things are.

    Args:
        out: the folder to write, which need not exist.
        others: what it must not hold: `RESULTS`, `SEARCH`, `PREPARED` or `RUN`.
        remedy: for the message.

    Raises:
        InputError: it is a file, or holds one of these.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: is a file; give `out` a folder")
    for content in others:
        if holds(out, content):
            raise InputError(f"{out}: holds {content}; {remedy}")


def refuse_other_files(out: Path, ours: Collection[str]) -> None:
    """Refuse a folder that holds more than these files, and more than hidden ones.

    Raises:
        InputError: it does.
    """
    found = {path.name for path in out.iterdir()} if out.exists() else set()
    others = sorted(name for name in found.difference(ours) if not name.startswith("."))
    if others:
        raise InputError(f"{out}: holds {others[0]!r}; give `out` a new or empty folder")


@contextmanager
def set_aside(
    folder: Path,
    mark: str,
    what: str,
    *,
    keep: Collection[str] = (),
    with_results: Collection[str] = (),
) -> Iterator[None]:
    """Put a folder aside for a block that writes it anew, and delete it when the new one is there.

    If the block leaves no folder with the mark, the old one is put back.

    Args:
        folder: which may be missing.
        mark: pattern of a file that shows what it is.
        what: this, for the message.
        keep: names of entries that stay where they are, as the block may read them.
        with_results: names of entries that may hold results, and go with the folder.

    Raises:
        InputError: if the folder is something else, or holds more folders with results.
    """
    if not folder.exists():
        yield
        return
    if not folder.is_dir() or not any(folder.glob(mark)):
        raise InputError(f"{folder}: is no {what}, so `overwrite` does not delete it")
    if other := inside(folder, besides=(*keep, *with_results)):
        raise InputError(f"{folder}: holds {other[0]} in {other[1]}; `overwrite` would delete it")
    with lock_folder(folder, "another process writes there; use another `out`"):
        old = folder.with_name(f".{folder.name}.replaced-{token_hex(4)}")
        kept = [name for name in keep if (folder / name).exists()]
        folder.rename(old)
        _move(kept, old, folder)
        try:
            yield
        finally:
            if any(folder.glob(mark)):
                shutil.rmtree(old)
            else:
                _move(kept, folder, old)
                shutil.rmtree(folder, ignore_errors=True)
                old.rename(folder)


def _move(names: Collection[str], source: Path, target: Path) -> None:
    for name in names:
        target.mkdir(exist_ok=True)
        (source / name).rename(target / name)


@contextmanager
def lock_folder(folder: Path, taken: str) -> Iterator[None]:
    """Lock a folder for this process within the block; create it if it is missing.

    The lock ends with the process, even if it is killed, and leaves no file behind. On a disk
    without locks, a file `LOCK` does it, which a killed process leaves there. The next one takes it
    over only on the same machine.

    Args:
        folder: folder to lock.
        taken: error message if another process has locked it.

    Raises:
        InputError: if another process has locked it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with try_lock(folder) as ours:
        if ours is False:
            raise InputError(f"{folder}: {taken}")
        with nullcontext() if ours else _lock_file(folder / LOCK, taken):
            yield


@contextmanager
def _lock_file(file: Path, taken: str) -> Iterator[None]:
    """Have a file that says which process has its folder, within the block."""
    host = socket.gethostname()
    own = f"process {os.getpid()} on {host}"
    while not _write_new(file, own):
        holder = _text_of(file)
        number = re.fullmatch(rf"process (\d+) on {re.escape(host)}", holder)
        if holder != own and (number is None or _is_running(int(number[1]))):
            raise InputError(
                f"{file.parent}: {taken} ({file.name} names {holder or 'no process yet'}; the disk "
                "has no locks, so remove that file once the process is gone)"
            )
        _take_away(file, holder)
    try:
        yield
    finally:
        if _text_of(file) == own:
            file.unlink(missing_ok=True)


def _write_new(file: Path, text: str) -> bool:
    """Write a file that does not exist; False if it does."""
    try:
        target = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return False
    try:
        os.write(target, text.encode())
    except BaseException:
        file.unlink(missing_ok=True)
        raise
    finally:
        os.close(target)
    return True


def _text_of(file: Path) -> str:
    with suppress(FileNotFoundError):
        return file.read_text(encoding="utf-8", errors="replace")
    return ""


def _take_away(file: Path, text: str) -> None:
    """Remove a file with this text; it comes back if another process has replaced it since."""
    moved = file.with_name(f"{file.name}.{token_hex(4)}")
    with suppress(FileNotFoundError):  # another process was as fast
        file.rename(moved)
        if _text_of(moved) != text:
            with suppress(FileExistsError):
                os.link(moved, file)
        moved.unlink()


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # of another user
        return True
    return True


@contextmanager
def try_lock(path: Path) -> Iterator[bool | None]:
    """Lock a file or folder within the block: True, or False if another process has it.

    None if the disk does not support locks.

    >>> import tempfile
    >>> with try_lock(Path(tempfile.mkdtemp())) as ours:
    ...     ours
    True
    """
    target = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(target, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ours: bool | None = True
        except BlockingIOError:
            ours = False
        except OSError:  # a disk without locks
            ours = None
        yield ours
    finally:
        os.close(target)


@dataclass(frozen=True)
class NewFiles:
    """The files and folders that a process adds to a folder.

    Attributes:
        folder: the folder, which may not exist yet.
        before: paths in it that existed before; None if the folder did not.
        missing_parents: parent folders that did not exist, the innermost first.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "notes").touch()
        >>> new = NewFiles.since_now(folder)
        >>> (folder / "config.json").touch()
        >>> new.remove()
        >>> [path.name for path in folder.iterdir()]
        ['notes']
    """

    folder: Path
    before: frozenset[Path] | None
    missing_parents: tuple[Path, ...]

    @classmethod
    def since_now(cls, folder: Path) -> NewFiles:
        """Note what a folder holds now."""
        before = frozenset(folder.iterdir()) if folder.is_dir() else None
        return cls(folder, before, tuple(p for p in folder.parents if not p.exists()))

    def remove(self) -> None:
        """Remove what the folder did not hold, and the folder and its parents if they are new."""
        if self.before is None:
            shutil.rmtree(self.folder, ignore_errors=True)
            for parent in self.missing_parents:
                with suppress(OSError):  # it holds other files by now
                    parent.rmdir()
            return
        for path in set(self.folder.iterdir()) - self.before:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
