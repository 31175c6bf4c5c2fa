"""Guess the roles of a log's columns from its first rows; the user may correct each.

A guess errs toward ids: numbers that are taken for ids cost little, but ids that are taken for
numbers ruin a model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cowclip_merlin.addresses import FilePath
from cowclip_merlin.checks import near
from cowclip_merlin.errors import InputError
from cowclip_merlin.types import Array
from cowclip_merlin.workflows.raw.file_formats import TEXT, format_of
from cowclip_merlin.workflows.raw.first_look import count_values, first_rows, separator_with
from cowclip_merlin.workflows.raw.log_format import TABLE, LogFormat, separator_of
from cowclip_merlin.workflows.raw.readers import check_input_files
from cowclip_merlin.workflows.raw.values.numbers import read_numbers

if TYPE_CHECKING:
    import pyarrow as pa

ROLES = ("categorical", "multi", "continuous", "vector", "time", "weight")
"""Roles of columns, named as in `PrepareSettings`."""
IGNORE, LEFT_OUT = "ignore", "left out"
_FEW = 50  # whole numbers of so many values are ids
_MANY = 1000  # of more values, they are numbers if their values are spread unevenly
_UNEVEN = 0.3
_NEARLY_ALL = 0.9  # such a share of values that differ is one value a row
_ENOUGH = 50  # rows to tell one value a row from chance
_WRONG = 0.01  # such a share of values that are neither 0 nor 1 makes no label
_ODD = 3  # texts among numbers that may mean missing ones
_LISTS = ("|", ";")
_DIGITS = r"^-?[0-9]+(\.0+)?$"
_CODE = r"^-?(0[0-9]|[0-9]{16})"  # a zero in front, or more digits than numbers have
_OTHER_FORMS = {
    r"^-?[0-9]+(,[0-9]+)?$": "numbers with commas; write decimal points for a column of numbers",
    r"^[0-9]{1,4}[./][0-9]{1,2}[./][0-9]{1,4}( [0-9:.]+)?$": "dates; write 2001-01-31 or "
    "2001-01-31 14:05:09 for a column of times",
}
"""Pattern of texts that are ids here -> what they may mean, and how to write it."""
_OF_IDS = {"id", "ids", "key", "code", "hash", "user", "item", "zip"}
_OF_NUMBERS = {
    *("price", "amount", "cost", "count", "cnt", "age", "duration", "seconds", "secs", "ms"),
    *("distance", "length", "width", "height", "size", "score", "rating", "rate", "views"),
    *("total", "quantity", "qty", "revenue", "income", "balance"),
}
_OF_TIMES = {"time", "timestamp", "ts", "date", "datetime"}


@dataclass(frozen=True, kw_only=True)
class GuessedColumn:
    """A column and its role.

    Attributes:
        name: of the column.
        role: one of `ROLES`, or `LEFT_OUT`.
        why: what was seen, or who said so.
        separator: what stands between the values of lists in text.
    """

    name: str
    role: str
    why: str
    separator: str = ""


@dataclass(frozen=True, kw_only=True)
class Guess:
    """The roles of all columns of a log but its label.

    Attributes:
        label: name of the label.
        columns: the others, in the order of the log.
        separator: between the columns of text, if the name of the file does not tell it.
    """

    label: str
    columns: tuple[GuessedColumn, ...]
    separator: str | None = None

    def names(self, role: str) -> tuple[str, ...]:
        """Return the names of the columns of a role."""
        return tuple(each.name for each in self.columns if each.role == role)

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of `PrepareSettings` that say the same."""
        found: dict[str, Any] = {role: self.names(role) for role in ROLES}
        for role in ("time", "weight"):
            found[role] = found[role][0] if found[role] else None
        separators = {each.separator for each in self.columns if each.role == "multi"} - {""}
        found["multi_separator"] = min(separators, default="|")
        found["separator"] = self.separator
        found["split"] = "time" if found["time"] else "random"
        usual = {"multi_separator": "|", "split": "random"}
        given = {k: v for k, v in found.items() if v and v != usual.get(k)}
        return {"kind": TABLE, "label": self.label} | given

    def table(self) -> str:
        """Return the columns, roles and reasons as lines of text."""
        rows = [("column", "role", "why"), (self.label, "label", "")]
        rows += [(each.name, each.role, each.why) for each in self.columns]
        widths = [max(len(row[i]) for row in rows) for i in (0, 1)]
        return "\n".join(f"{a:{widths[0]}}  {b:{widths[1]}}  {c}".rstrip() for a, b, c in rows)


def guess_columns(
    files: Sequence[FilePath],
    label: str,
    given: Mapping[str, Sequence[str]] | None = None,
    *,
    separator: str | None = None,
    max_bad_fraction: float = 0,
) -> Guess:
    """Guess the roles of the columns of a log.

    Args:
        files: of the log; the first one is looked at.
        label: name of the label.
        given: role of `ROLES`, or `IGNORE` -> columns that have it, whatever they look like.
        separator: between columns of text; None: that of the header with the label.
        max_bad_fraction: share of rows that may have a wrong label, if above 1%.

    Raises:
        InputError: if a file is missing, the label or a given column is not there, a column is
            given twice, or the label has other values than 0 and 1.
    """
    check_input_files(files)
    if separator is None and format_of(files[0]) == TEXT:
        separator = separator_with(files[0], label)
    log_format = LogFormat(
        kind=TABLE,
        label=label,
        categorical=(),
        separator=separator or separator_of(files[0]),
        separator_given=separator is not None,
    )
    table, twice = first_rows(files[0], log_format)
    if not table.num_rows:
        raise InputError(f"{files[0]}: no rows; give a log with at least one row")
    if label in table.column_names:  # all but "", which `prepare` refuses
        _check_label(table[label], label, files[0], max(max_bad_fraction, _WRONG))
    known = _given_roles(given or {}, table.column_names, twice, label, files[0])
    found = [GuessedColumn(name=x, role=LEFT_OUT, why="its name occurs twice") for x in twice]
    looks = {name: _Look.of(name, table[name]) for name in table.column_names if name != label}
    doubtful = [name for name, look in looks.items() if name not in known and look.doubtful]
    counts = count_values(files, doubtful, log_format) if doubtful else {}
    looks |= {n: replace(looks[n], values=v, rows=r) for n, (v, r) in counts.items()}
    timed = "time" in known.values()
    for name, look in looks.items():
        if name in known:
            role = LEFT_OUT if known[name] == IGNORE else known[name]
            separator_of_lists = look.separator if role == "multi" else ""
            guessed = GuessedColumn(
                name=name, role=role, why="as given", separator=separator_of_lists
            )
        else:
            guessed = look.role(timed=timed)
        timed |= guessed.role == "time"
        found.append(guessed)
    found = _of_one_separator(found)
    own = separator if separator and separator != separator_of(files[0]) else None
    return Guess(label=label, columns=tuple(found), separator=own)


@dataclass(frozen=True, kw_only=True)
class _Look:
    """What the values of a column look like.

    Attributes:
        name: of the column.
        kind: "text", "whole", "number", "time", "lists", "vector" or "other".
        values: different ones.
        rows: those with a value.
        missing: share of rows without one.
        separator: what stands between the values of lists in text.
        detail: of the values, for the reason.
        as_id: whether whole numbers look like ids.
    """

    name: str
    kind: str
    values: int
    rows: int
    missing: float
    separator: str = ""
    detail: str = ""
    as_id: bool = True

    @classmethod
    def of(cls, name: str, column: pa.ChunkedArray) -> _Look:
        """Look at the values of a column."""
        known = column.drop_null()
        kind, values, more = _kind_of(name, known)
        missing = column.null_count / max(len(column), 1)
        return cls(name=name, kind=kind, values=values, rows=len(known), missing=missing, **more)

    @property
    def one_a_row(self) -> bool:
        """Whether nearly all values differ."""
        ids = self.kind == "text" or (self.kind == "whole" and self.as_id)
        return ids and self.rows >= _ENOUGH and self.values > _NEARLY_ALL * self.rows

    @property
    def doubtful(self) -> bool:
        """Whether more rows could change a decision to leave the column out."""
        return self.one_a_row or (self.values < 2 and self.kind in ("text", "whole"))

    def role(self, *, timed: bool) -> GuessedColumn:
        """Decide on the role; `timed`: another column has the time."""
        role, why = self._role(timed=timed)
        if role != LEFT_OUT and self.missing >= 0.001:
            why += f"; {self.missing:.1%} missing"
        return GuessedColumn(name=self.name, role=role, why=why, separator=self.separator)

    def _role(self, *, timed: bool) -> tuple[str, str]:
        values = f"{self.values:,} value{'s'[: self.values != 1]}"
        if self.kind == "other":
            return LEFT_OUT, self.detail
        if not self.rows:
            return LEFT_OUT, "no values"
        if self.values < 2 and self.kind != "vector":
            return LEFT_OUT, "one value only"
        if self.one_a_row:
            return LEFT_OUT, f"nearly one value a row: {values} in {self.rows:,} rows{self.detail}"
        if self.kind == "time" and timed:
            return LEFT_OUT, "another column has the time"
        if self.kind in ("text", "whole") and self.as_id and {"/", "\0"} & {*self.name}:
            return LEFT_OUT, "a name with a slash; rename it to use it"
        return {
            "text": ("categorical", f"text, {values}{self.detail}"),
            "whole": ("categorical", f"whole numbers, {values}")
            if self.as_id
            else ("continuous", f"whole numbers, {values}{self.detail}"),
            "number": ("continuous", "numbers"),
            "time": ("time", "times: hour, weekday and the order of the split"),
            "lists": ("multi", f"lists, {values}{self.detail}"),
            "vector": ("vector", f"vectors{self.detail}"),
        }[self.kind]


Kind = tuple[str, int, dict[str, Any]]
"""Kind of values, how many differ, and other attributes of `_Look`."""


def _kind_of(name: str, values: pa.ChunkedArray) -> Kind:
    import pyarrow as pa
    import pyarrow.types as types

    kind = values.type
    if types.is_dictionary(kind):
        return _kind_of(name, values.cast(kind.value_type))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _kind_of_lists(values)
    if types.is_timestamp(kind) or types.is_date(kind):
        return "time", len(values.unique()), {}
    if types.is_boolean(kind) or types.is_null(kind):
        return "text", len(values.unique()), {}
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return _kind_of_numbers(name, values.unique().cast(pa.float64(), safe=False).to_numpy())
    if not (types.is_string(kind) or types.is_large_string(kind)):
        return "other", 0, {"detail": f"{kind}, neither text nor numbers"}
    return _kind_of_texts(name, values.cast(pa.string()))


def _kind_of_lists(values: pa.ChunkedArray) -> Kind:
    import pyarrow.compute as pc
    import pyarrow.types as types

    inner = pc.list_flatten(values)
    if types.is_floating(inner.type):
        lengths = pc.unique(pc.list_value_length(values)).to_pylist()
        if len(lengths) == 1 and lengths[0] and not inner.null_count:
            return "vector", len(values), {"detail": f" of {lengths[0]} numbers"}
    if types.is_nested(inner.type):
        return "other", 0, {"detail": f"{values.type}, lists of lists or objects"}
    return "lists", len(inner.unique()), {}


def _kind_of_texts(name: str, texts: pa.ChunkedArray) -> Kind:
    import pyarrow as pa
    import pyarrow.compute as pc

    from cowclip_merlin.workflows.raw.made_columns import times_of_values

    unique = texts.unique()
    if not len(unique):
        return "text", 0, {}
    if pc.all(pc.match_substring_regex(unique, _DIGITS)).as_py():
        if pc.any(pc.match_substring_regex(unique, _CODE)).as_py():
            return "text", len(unique), {}
        return _kind_of_numbers(name, unique.cast(pa.float64()).to_numpy())
    numbers, right = read_numbers(unique, pa.float64())
    if right.all() and np.isfinite(numbers.to_numpy(zero_copy_only=False)).all():
        return "number", len(unique), {}
    if times_of_values(unique, name)[1].all():
        return "time", len(unique), {}
    others = unique.filter(pa.array(~(right & np.isfinite(numbers.fill_null(np.nan)))))
    if len(others) <= _ODD and len(unique) > 10 * _ODD:
        odd = repr(others[0].as_py())
        detail = f": numbers but for such as {odd}; empty these cells for a column of numbers"
        return "text", len(unique), {"detail": detail}
    for pattern, words in _OTHER_FORMS.items():
        if pc.all(pc.match_substring_regex(unique, pattern)).as_py():
            return "text", len(unique), {"detail": f": {words}"}
    for separator in _LISTS:
        has = pc.match_substring(texts, separator)
        every = pc.list_flatten(pc.split_pattern(unique, separator))
        parts = every.unique()
        if pc.sum(has).as_py() >= 0.01 * len(texts) and len(parts) < len(every):
            detail = f", separated by {separator}"
            return "lists", len(parts), {"separator": separator, "detail": detail}
    return "text", len(unique), {}


def _kind_of_numbers(name: str, values: Array) -> Kind:
    """Return the kind of different numbers, [v]."""
    count = len(values)
    if not np.isfinite(values).all() or (values != np.floor(values)).any():
        return "number", count, {}
    words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
    told = next((word for word in reversed(words) if word in _OF_IDS | _OF_NUMBERS), "")
    if _OF_TIMES.intersection(words) and count > 1:
        if ((values >= 1e8) & (values < 2e9)).all():
            return "time", count, {}
        if ((values >= 1e11) & (values < 2e12)).all():
            return "other", 0, {"detail": "times in milliseconds; divide by 1000 to use them"}
    if count <= _FEW or told in _OF_IDS:
        return "whole", count, {}
    if told in _OF_NUMBERS:
        return "whole", count, {"as_id": False}
    if count > _MANY and _unevenness(values) > _UNEVEN:
        return "whole", count, {"as_id": False, "detail": ", unevenly spread"}
    return "whole", count, {}


def _unevenness(values: Array) -> float:
    """Return the largest distance between the distribution of values and an even one, in [0, 1].

    Ids are numbered one after another, or are hashes: both are spread evenly. Amounts are not.

    >>> _unevenness(np.arange(100)) < 0.02, _unevenness(np.arange(100) ** 4) > 0.4
    (True, True)
    """
    found = np.sort(values.astype(np.float64))
    even = (found - found[0]) / (found[-1] - found[0])
    return float(np.abs(even - np.linspace(0, 1, len(found))).max())


def _check_label(values: pa.ChunkedArray, label: str, file: FilePath, most: float) -> None:
    """Refuse a label of several classes, or a number, before any row is prepared."""
    from cowclip_merlin.workflows.raw.columns import Label

    values = values.combine_chunks().drop_null()
    _, right = Label(label).check(values, f"{file}: column {label!r}")
    if not len(values) or 1 - right.mean() <= most:
        return
    counts = sorted(values.value_counts().to_pylist(), key=lambda each: -each["counts"])
    some = ", ".join(repr(each["values"]) for each in counts[:3])
    some += f" and {len(counts) - 3} more" if len(counts) > 3 else ""
    raise InputError(
        f"{file}: label {label!r} has the values {some}, not 0 and 1; make a column of 0 and 1, "
        "for several classes one each; for numbers, use cowclip prepare table with `regression`"
    )


def _given_roles(
    given: Mapping[str, Sequence[str]],
    names: Sequence[str],
    twice: Sequence[str],
    label: str,
    file: FilePath,
) -> dict[str, str]:
    """Return column -> role of the columns whose roles are given.

    Raises:
        InputError: if a column is not there, or there twice, or has two roles.
    """
    found: dict[str, str] = {label: "label"}
    for role, columns in given.items():
        if role in ("time", "weight") and len(columns) > 1:
            raise InputError(f"`{role}` takes one column, not {', '.join(columns)}")
        for name in columns:
            if name in twice and role != IGNORE:
                raise InputError(f"`{role}`: column {name!r} occurs twice in {file}; rename one")
            if name not in names and name not in twice:
                some = ", ".join(map(repr, names[:12])) + (", ..." if len(names) > 12 else "")
                hint = near(name, names)
                raise InputError(f"`{role}`: {file} has no column {name!r}, but {some}{hint}")
            if name in found:
                other = "the label" if name == label else f"given as `{found[name]}`, too"
                raise InputError(f"`{role}`: column {name!r} is {other}; give it one role")
            found[name] = role
    return found


def _of_one_separator(columns: Sequence[GuessedColumn]) -> list[GuessedColumn]:
    """Leave out lists in text whose separator is not that of the first ones."""
    used = [each.separator for each in columns if each.role == "multi" and each.separator]
    found = []
    for each in columns:
        if each.role == "multi" and each.separator not in ("", *used[:1]):
            why = f"lists with {each.separator}, but others have {used[0]}; use one of them"
            each = replace(each, role=LEFT_OUT, why=why)
        found.append(each)
    return found
