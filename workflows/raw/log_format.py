"""Describe the columns of a raw log."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from cowclip_merlin.addresses import FilePath
from cowclip_merlin.errors import InputError
from cowclip_merlin.targets import Target, targets_of
from cowclip_merlin.workflows.raw.file_formats import COMPRESSED_SUFFIXES

if TYPE_CHECKING:
    from cowclip_merlin.workflows.raw.columns import Column

TABLE, EVENTS = "table", "events"
"""Kinds of logs whose columns the user names: a table of `prepare`, and a log with a time."""

TAB = "\t"
_TEXT_OPTIONS = ("file_columns", "header", "separator", "separator_given")
# Attributes of `LogFormat` that say how the columns of a text file are written.
_NO_SEPARATORS = '"\r\n\0'  # characters that cannot separate columns


@dataclass(frozen=True, kw_only=True)
class LogFormat:
    """Columns of one kind of click log.

    Attributes:
        kind: "table", "events" or a name of `KINDS` in prepare_settings.
        label: name of the first label, 0 or 1; "" to read rows without their labels.
        more_labels: names of the labels of further targets.
        regression: those of all labels that are numbers; the others are 0 or 1.
        categorical: names of the categorical columns, in model order.
        continuous: names of the numeric columns, in model order.
        file_columns: all columns of a text file, in file order; empty to read them from the
            header.
        header: whether the first line of a text file names the columns.
        separator: one character between columns of a text file.
        separator_given: whether all text files have this separator. If not, and it is a comma or
            a tab, the name of each file of a table decides.
        integer: continuous columns that must hold whole numbers.
        multi: categorical columns with several values per row -> what separates them in text.
        max_values: keep at most so many values of a row in such a column; 0: all.
        keep_values: which ones to keep then: "first" or "last".
        weight: name of the column with the weights of the rows; "": all rows weigh the same.
        vectors: columns with a vector of numbers per row -> its length; 0: not known yet.
        vector_separator: what separates the numbers of a vector in text.
        share_embedding: categorical column -> the one whose ids, and later embedding table, it
            has, too.
        text: categorical columns whose text stays as it is; in the others, "47.0" is "47". Columns
            that share a table follow the one that it is named after.
        time: column of dates or times to read, of which `time_parts` are made; "": there is none.
        buckets: categorical columns of whole numbers; all x above 2 with the same floor(log(x)^2)
            are one value, and a missing x is 0.
        day_hour: column of hours such as 14102122 (year, month, day, hour) to read, of which
            `DAY_HOUR_PARTS` are made; "": there is none.
    """

    kind: str
    label: str
    categorical: tuple[str, ...]
    continuous: tuple[str, ...] = ()
    file_columns: tuple[str, ...] = ()
    header: bool = True
    separator: str = ","
    integer: tuple[str, ...] = ()
    separator_given: bool = False
    multi: Mapping[str, str] = field(default_factory=dict)
    max_values: int = 0
    keep_values: str = "first"
    weight: str = ""
    vectors: Mapping[str, int] = field(default_factory=dict)
    vector_separator: str = "|"
    share_embedding: Mapping[str, str] = field(default_factory=dict)
    more_labels: tuple[str, ...] = ()
    regression: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    time: str = ""
    buckets: tuple[str, ...] = ()
    day_hour: str = ""

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of all labels; none to read rows without their labels."""
        return (self.label, *self.more_labels) if self.label else ()

    @cached_property
    def targets(self) -> tuple[Target, ...]:
        """What a model predicts, the first label first."""
        return targets_of(self.labels, self.regression)

    @property
    def float_labels(self) -> bool:
        """Whether labels are float32, with NaN for a missing one; else one is int8, 0 or 1."""
        return bool(self.more_labels or self.regression)

    @property
    def quotes(self) -> bool:
        """Whether cells of a text file may be quoted."""
        return self.separator != TAB

    def of_file(self, file: FilePath) -> LogFormat:
        """Return the format of one file, whose name may decide its separator."""
        by_name = self.kind in (TABLE, EVENTS) and self.separator in (",", TAB)
        if self.separator_given or not by_name:
            return self
        return replace(self, separator=separator_of(file))

    def cells(self, line: str) -> list[str]:
        """Split a line of text into its cells."""
        if not self.quotes:
            return line.split(self.separator)
        try:
            return next(csv.reader([line], delimiter=self.separator), [""])
        except csv.Error:  # a very long cell, or, before Python 3.11, a zero byte
            return line.split(self.separator)

    def table_of(self, column: str) -> str:
        """Return the name of the table of a categorical column: that column, or another one."""
        return self.share_embedding.get(column, column)

    def keeps_text(self, column: str) -> bool:
        """Return whether "47.0" and "47" are two values of a categorical column."""
        return self.table_of(column) in self.text

    @cached_property
    def tables(self) -> dict[str, list[str]]:
        """The categorical columns of each table, by its name.

        >>> share = {"liked": "item"}
        >>> LogFormat(
        ...     kind="table", label="", categorical=("liked", "user", "item"), share_embedding=share
        ... ).tables
        {'item': ['liked', 'item'], 'user': ['user']}
        """
        found: dict[str, list[str]] = {}
        for column in self.categorical:
            found.setdefault(self.table_of(column), []).append(column)
        return found

    @cached_property
    def roles(self) -> tuple[Column, ...]:
        """The columns to prepare, and what each of them is."""
        from cowclip_merlin.workflows.raw import columns as kinds
        from cowclip_merlin.workflows.raw import made_columns

        optional, most = self.float_labels, {"most": self.max_values, "keep": self.keep_values}
        found: list[Column] = [kinds.Label(*each, optional=optional) for each in self.targets]
        for name in self.categorical:
            ids = {"name": name, "table": self.table_of(name), "keeps_text": self.keeps_text(name)}
            if name in self.multi:
                found.append(kinds.Lists(**ids, separator=self.multi[name], **most))
            elif name in self.buckets:
                found.append(made_columns.Buckets(**ids))
            else:
                found.append(kinds.Ids(**ids))
        found += [kinds.Number(name, whole=name in self.integer) for name in self.continuous]
        found += [kinds.Weight(self.weight)] if self.weight else []
        separator = self.vector_separator
        found += [kinds.Vector(name, n, separator) for name, n in self.vectors.items()]
        return tuple(found)

    @cached_property
    def sources(self) -> tuple[Column, ...]:
        """The columns of a file to read: those of `roles`, with times instead of their parts."""
        from cowclip_merlin.workflows.raw.made_columns import DayHour, Time

        times = [Time(self.time)] if self.time else []
        times += [DayHour(self.day_hour)] if self.day_hour else []
        made = {name for each in times for name in each.made}
        return (*(column for column in self.roles if column.name not in made), *times)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns to read."""
        return tuple(column.name for column in self.sources)

    @property
    def widths(self) -> dict[str, int]:
        """How many numbers a model reads of each continuous column and each vector, in order."""
        return dict.fromkeys(self.continuous, 1) | dict(self.vectors)

    def without_label(self) -> LogFormat:
        """Return the columns of rows to score, which need neither labels nor weight."""
        return replace(self, label="", weight="", more_labels=(), regression=())

    def only(self, *names: str, time: str = "") -> LogFormat:
        """Return a format that reads only these columns as text, or only a column of times."""
        how = {name: getattr(self, name) for name in _TEXT_OPTIONS}
        return LogFormat(kind=self.kind, label="", categorical=names, text=names, time=time, **how)


_IDS = tuple(f"C{i}" for i in range(1, 27))  # of Criteo
_NUMBERS = tuple(f"I{i}" for i in range(1, 14))

CRITEO = LogFormat(
    kind="criteo",
    label="label",
    categorical=_IDS,
    continuous=_NUMBERS,
    file_columns=("label", *_NUMBERS, *_IDS),
    header=False,
    separator="\t",
    integer=_NUMBERS,
)
"""Criteo Kaggle display advertising challenge, `train.txt`."""

AVAZU = LogFormat(
    kind="avazu",
    label="click",
    categorical=(
        "hour",
        "C1",
        "banner_pos",
        "site_id",
        "site_domain",
        "site_category",
        "app_id",
        "app_domain",
        "app_category",
        "device_id",
        "device_ip",
        "device_model",
        "device_type",
        "device_conn_type",
        *(f"C{i}" for i in range(14, 22)),
    ),
)
"""Avazu click-through rate prediction, `train`: `id` is dropped, `hour` is a category."""

DAY_HOUR_PARTS = ("hour", "weekday", "weekend")
"""Names of the id columns that are made of `LogFormat.day_hour`."""

CRITEO_X1 = LogFormat(
    kind="criteo_x1", label="label", categorical=_IDS, vectors=dict.fromkeys(_NUMBERS, 1)
)
"""Criteo_x1 of BARS: numbers are read as they are."""

CRITEO_X4 = LogFormat(
    kind="criteo_x4", label="Label", categorical=(*_NUMBERS, *_IDS), buckets=_NUMBERS, text=_IDS
)
"""Criteo_x4 of BARS: numbers are ids of buckets."""

AVAZU_X1 = LogFormat(
    kind="avazu_x1", label="label", categorical=tuple(f"feat_{i}" for i in range(1, 23))
)
"""Avazu_x1 of BARS."""

AVAZU_X4 = LogFormat(
    kind="avazu_x4",
    label="click",
    categorical=(*AVAZU.categorical, *DAY_HOUR_PARTS[1:]),
    text=AVAZU.categorical[1:],
    day_hour="hour",
)
"""Avazu_x4 of BARS: `id` is dropped."""


def time_parts(time: str) -> tuple[str, ...]:
    """Return the names of the id columns that are made of a column of times.

    >>> time_parts("date"), time_parts("")
    (('date_hour', 'date_weekday'), ())
    """
    return (f"{time}_hour", f"{time}_weekday") if time else ()


def separator_of(file: FilePath) -> str:
    """Separator of columns by file name: tabs in .tsv and .txt, else commas.

    >>> separator_of(Path("log.tsv.gz")), separator_of(Path("log.csv.zst"))
    ('\\t', ',')
    """
    name = Path(file.stem) if file.suffix.lower() in COMPRESSED_SUFFIXES else file
    return TAB if name.suffix.lower() in (".tsv", ".txt") else ","


def parse_separator(text: str) -> str:
    """Return the separator that the option `--separator` gives.

    >>> parse_separator("tab"), parse_separator(";")
    ('\\t', ';')
    """
    separator = TAB if text in ("tab", "\\t") else text
    if (
        len(separator) != 1
        or not separator.isascii()
        or separator.isalnum()
        or separator in _NO_SEPARATORS
    ):
        raise InputError(
            f"`separator` is {text!r}; give one ASCII character that is no letter, digit, quote or "
            "line end, such as ',' or ';', or the word tab"
        )
    return separator
