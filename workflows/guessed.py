"""Prepare rows whose columns have guessed roles, in the folder of the run that they are for."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cowclip_merlin.addresses import FilePath, expand, is_address, path_of
from cowclip_merlin.errors import InputError
from cowclip_merlin.workflows.guess import Guess, guess_columns
from cowclip_merlin.workflows.prepare import prepare
from cowclip_merlin.workflows.prepare_settings import PrepareSettings
from cowclip_merlin.workflows.prepared.folder import PreparedData
from cowclip_merlin.workflows.raw.frames import Frame, arrow_table, is_frame


@dataclass(frozen=True, kw_only=True)
class GuessedLog:
    """A log, and the roles of its columns.

    Attributes:
        files: of the log.
        guess: the roles.
        settings: arguments of `PrepareSettings` but `out`.
    """

    files: tuple[FilePath, ...]
    guess: Guess
    settings: Mapping[str, Any]

    def prepare(self, out: Path) -> PreparedData:
        """Prepare the log as the guess says."""
        return prepare(PrepareSettings(out=out, **self.settings))


@contextmanager
def guessed_log(
    rows: Frame | str | FilePath | Sequence[str | FilePath],
    label: str,
    *,
    given: Mapping[str, Sequence[str]] | None = None,
    separator: str | None = None,
    **settings: Any,
) -> Iterator[GuessedLog]:
    """Yield a log with guessed roles; rows in memory are in a file within the block.

    Args:
        rows: rows in memory, or raw files.
        label: name of the label.
        given: role -> columns that have it; see `guess_columns`.
        separator: between the columns of text; None: guessed.
        settings: further arguments of `PrepareSettings`, which win over the guess.

    Raises:
        InputError: if a file, the label or a column is missing.
    """
    with ExitStack() as stack:
        if is_frame(rows):
            folder = Path(stack.enter_context(TemporaryDirectory()))
            stack.enter_context(naming_frame(folder))
            files = (write_rows(rows, folder / "frame.parquet"),)
        else:
            one = isinstance(rows, str | Path) or is_address(rows)
            files = tuple(expand(map(path_of, [rows] if one else rows)))
        how = {"max_bad_fraction": settings.get("max_bad_fraction", 0), "separator": separator}
        guess = guess_columns(files, label, given, **how)
        if not any(guess.names(role) for role in ("categorical", "multi", "time")):
            raise InputError(f"{files[0]}: no column looks like ids; name one in `categorical`")
        known = {"files": files} | guess.settings
        if settings.get("test"):
            known.pop("split", None)
        yield GuessedLog(files=files, guess=guess, settings=known | settings)


@contextmanager
def naming_frame(folder: Path) -> Iterator[None]:
    """Name the frame in errors, not its files in this folder."""
    try:
        yield
    except InputError as error:
        words = re.sub(rf"{re.escape(str(folder))}/\w+\.parquet", "the frame", str(error))
        raise type(error)(words) from error


def write_rows(rows: Frame, file: Path) -> Path:
    """Write rows in memory to a parquet file."""
    import pyarrow.parquet as pq

    table = arrow_table(rows)
    if not table.num_rows:
        raise InputError("the frame has no rows; give a log with at least one row")
    pq.write_table(table, file)
    return file


@contextmanager
def new_run_folder(out: str | FilePath) -> Iterator[Path]:
    """Make a folder for a run; remove it again if the block fails before the run has begun.

    Raises:
        InputError: if the path is taken.
    """
    if is_address(out):
        raise InputError(f"{out}: is an address; give `out` a folder on this machine")
    path = Path(out)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{out}: already exists; use another `out`, or cowclip fit --overwrite")
    path.mkdir(parents=True, exist_ok=True)
    try:
        yield path
    except BaseException:
        if not (path / "config.json").exists():
            shutil.rmtree(path, ignore_errors=True)
        raise
