"""Read raw rows as `prepare` reads them: in parts, or into a pandas frame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cowclip_merlin.addresses import Address, FilePath, expand
from cowclip_merlin.checks import near, one_of
from cowclip_merlin.errors import InputError
from cowclip_merlin.workflows.parallel import Threads
from cowclip_merlin.workflows.prepare_settings import KINDS
from cowclip_merlin.workflows.prepared.folder import PreparedData
from cowclip_merlin.workflows.raw.file_formats import TEXT, format_of
from cowclip_merlin.workflows.raw.frames import Frame, parts
from cowclip_merlin.workflows.raw.log_format import LogFormat
from cowclip_merlin.workflows.raw.parsed_rows import ParsedRows, Quarantine, checked_rows
from cowclip_merlin.workflows.raw.readers import (
    check_input_files,
    read_rows,
    reading_bar,
    staged_columns,
)
from cowclip_merlin.workflows.raw.text_lines import read_blocks

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


BLOCK_BYTES = 1 << 23
"""Bytes of text to read at a time."""

_FRAME_ROWS = 1 << 17


@dataclass(frozen=True, kw_only=True)
class RawRows:
    """Some rows of the input, in its order.

    Attributes:
        table: Arrow table of the log's columns: text, numbers, and if they are read, the label as
            int8 and the weight as float32.
        kept: Arrow table of the columns to keep, as they are in the input.
        positions: position of each row in the whole input, counted from 0, int64 [n].
    """

    table: pa.Table
    kept: pa.Table
    positions: npt.NDArray[np.int64]


class LogReader:
    """Reads rows in pieces as `prepare` reads them.

    Args:
        log_format: columns of the log.
        labels: read the label, and the weight if there is one; without, rows need none of them.
        keep: names of columns to return unchanged. Those of a text file are text.
        max_bad_fraction: stop if the share of damaged rows exceeds this; None: at the first one.

    Raises:
        InputError: if `max_bad_fraction` is no share.

    Attributes:
        total: rows read so far, with damaged ones.
        damaged: the damaged rows.
        whole_floats: as of `staged_columns`, of the rows read so far.
    """

    def __init__(
        self,
        log_format: LogFormat,
        *,
        labels: bool = True,
        keep: Sequence[str] = (),
        max_bad_fraction: float | None = None,
    ) -> None:
        self._format = log_format if labels else log_format.without_label()
        self._label, self._keep = log_format.label, list(keep)
        self._strict = max_bad_fraction is None
        self.damaged = Quarantine(None, max_bad_fraction=max_bad_fraction or 0.0)
        self.total = 0
        self.whole_floats: dict[str, str] = {}

    def files(self, files: Sequence[FilePath]) -> Iterator[RawRows]:
        """Read files: plain or compressed text, JSON lines, or parquet."""
        check_input_files(files)
        with Threads(1) as threads, reading_bar(files) as bar:
            for file in files:
                columns = self._text_format(file) if format_of(file) == TEXT else self._format
                how = {"keep": self._keep, "bar": bar}
                for parsed in read_rows(file, columns, BLOCK_BYTES, threads, **how):
                    yield self._rows(parsed, file)
        self.damaged.check(files[-1], self.total, at_end=True)
        if self.total == self.damaged.count:
            raise InputError(f"{files[0]}: no rows; give a log with at least one row")

    def frame(self, frame: Frame) -> Iterator[RawRows]:
        """Read rows in memory; columns to keep are left out."""
        start = 0
        for rows in parts(frame, self._format.columns, _FRAME_ROWS):
            parsed = checked_rows(rows, self._format.sources, Path("the frame"), start)
            start += len(rows)
            for bad in parsed.bad:
                row = f"row {bad.line - 1}, counted from 0"
                raise InputError(f"the frame: {row}: {bad.reason}; repair this row")
            yield self._rows(parsed, Path("the frame"))

    def _rows(self, parsed: ParsedRows, file: FilePath) -> RawRows:
        """Return the next rows, and count them; check how many are damaged."""
        if self._strict and parsed.bad:
            first = parsed.bad[0]
            raise InputError(f"{first.file}:{first.line}: {first.reason}; repair this row")
        start, self.total = self.total, self.total + parsed.lines
        self.damaged.add(parsed.bad)
        self.damaged.check(file, self.total)
        kept = parsed.table.select(self._keep) if parsed.kept is None else parsed.kept
        return RawRows(
            table=staged_columns(parsed.table, self._format, self.whole_floats, coded=False),
            kept=kept,
            positions=parsed.positions.astype(np.int64) + start,
        )

    def _text_format(self, file: FilePath) -> LogFormat:
        """Return the format to parse a text file: columns to keep are text, too."""
        log_format = self._format.of_file(file)
        new = [name for name in self._keep if name not in log_format.columns]
        log_format = replace(log_format, categorical=(*log_format.categorical, *new))
        if log_format.header:
            return log_format
        names = log_format.file_columns
        if not log_format.label and _columns_of(file, log_format) == len(names) - 1:
            # such as Criteo's test.txt
            names = tuple(name for name in names if name != (self._label or names[0]))
        for name in new:
            if name not in names:
                words = f"no column {name!r}; it has {', '.join(names)}{near(name, names)}"
                raise InputError(f"{file}: {words}")
        return replace(log_format, file_columns=names)


def _columns_of(file: FilePath, log_format: LogFormat) -> int:
    """Return the number of columns of the first line."""
    with closing(read_blocks(file, 1 << 16)) as blocks:
        line, _, _ = next(blocks).text.partition(b"\n")
        text = line.decode("utf-8", "replace").removesuffix("\r")
        return len(log_format.cells(text))


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
    return pd.concat([_frame(rows) for rows in reader.files(paths_of(files))])


def _format_of(like: PreparedData | LogFormat | str) -> LogFormat:
    if isinstance(like, str):
        one_of("format of a log", like, KINDS)
        return KINDS[like]
    return like.log_format if isinstance(like, PreparedData) else like


def paths_of(files: str | FilePath | Sequence[str | FilePath]) -> list[FilePath]:
    """Return the paths or addresses of one file, of several, or of those that match patterns."""
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
