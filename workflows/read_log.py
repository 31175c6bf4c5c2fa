"""Read raw rows into a pandas frame, as `prepare` reads them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cowclip_merlin.addresses import Address, FilePath, expand
from cowclip_merlin.checks import one_of
from cowclip_merlin.errors import InputError
from cowclip_merlin.workflows.prepare_settings import KINDS
from cowclip_merlin.workflows.prepared.folder import PreparedData
from cowclip_merlin.workflows.raw.log_format import LogFormat
from cowclip_merlin.workflows.raw.log_reader import LogReader, RawRows

if TYPE_CHECKING:
    import pandas as pd


def read_log(
    files: str | FilePath | Sequence[str | FilePath],
    like: PreparedData | LogFormat | str,
    *,
    labels: bool = False,
    keep: Sequence[str] = (),
    max_bad_fraction: float | None = None,
) -> pd.DataFrame:
    """Read raw rows as `prepare` reads them: only an empty cell is missing, and text stays text.

    Args:
        files: text or JSON lines, plain or compressed, or parquet, in the order of the rows;
            also patterns, and addresses such as s3://.
        like: a prepared folder, or the format of the log: "criteo", "avazu" or a `LogFormat`.
        labels: also read the label, and the weight if the log has one; a row without a valid one
            is then damaged.
        keep: more columns to read. Those of a text file are text.
        max_bad_fraction: leave damaged rows out, up to this share; None: refuse them.

    Returns:
        A pandas DataFrame with one row for each row of the files. Its index counts them from 0.
        Categorical columns are text or None, continuous ones float64, the label is int8,
        and the weight float32.

    Raises:
        InputError: if a file is missing, empty or damaged, has other columns or too many damaged
            rows.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "log.csv"
    >>> _ = file.write_text("country,price\\nNA,4.5\\n,\\n")
    >>> columns = {"categorical": ("country",), "continuous": ("price",)}
    >>> read_log(file, LogFormat(kind="table", label="y", **columns)).to_dict("list")
    {'country': ['NA', None], 'price': [4.5, nan]}
    """
    import pandas as pd

    log_format = _format_of(like)
    read = log_format if labels else log_format.without_label()
    if double := set(keep) & set(read.columns):
        raise InputError(f"keep: {min(double)!r} is read in any case; remove it")
    reader = LogReader(log_format, labels=labels, keep=keep, max_bad_fraction=max_bad_fraction)
    parts = [_frame(rows) for rows in reader.files(paths_of(files))]
    return pd.concat(parts)


def _format_of(like: PreparedData | LogFormat | str) -> LogFormat:
    if isinstance(like, str):
        one_of("format of a log", like, KINDS)
        return KINDS[like]
    return like.log_format if isinstance(like, PreparedData) else like


def paths_of(files: str | FilePath | Sequence[str | FilePath]) -> list[FilePath]:
    """Return the paths or addresses of one file, of several, or of those that match patterns.

    Raises:
        InputError: if there are none, or none that matches a pattern.
    """
    given = [files] if isinstance(files, str | Path | Address) else list(files)
    if not given:
        raise InputError("no input files; give at least one")
    return expand(given)


def _frame(rows: RawRows) -> pd.DataFrame:
    table = rows.table
    for name in rows.kept.column_names:
        table = table.append_column(name, rows.kept[name])
    frame = table.to_pandas()
    frame.index = rows.positions
    return frame
