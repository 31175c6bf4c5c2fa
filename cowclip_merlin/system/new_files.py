"""Remove what a failed process has added to a folder, and nothing else."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


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
