"""The inputs of a stream: a class for each kind says how messages and files give its values.

What a value is depends on its text alone: that of `text_of_value` for a message or a request, that
of Arrow for parquet. Values of one type have the same ids and numbers without the way over text.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from difflib import get_close_matches
from itertools import chain
from types import NoneType
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from cowclip_merlin.online.events.values import NumberScaling, one_array, text_ids
from cowclip_merlin.tables.layout import FieldRules
from cowclip_merlin.types import ArrowColumn, Json
from cowclip_merlin.workflows.raw.values.multi_values import (
    cut_lists,
    damage_in_vector,
    vector_damage,
    vector_values,
)
from cowclip_merlin.workflows.raw.values.numbers import number_of_text, numbers_of_texts
from cowclip_merlin.workflows.raw.values.value_text import EXACT

if TYPE_CHECKING:
    import pyarrow as pa

    from cowclip_merlin.online.events.events import Damage

Cell = TypeVar("Cell")
Row = Mapping[str, Json]

_WHOLE = 2**63  # whole numbers below are numbers of a vector as they are, and ids


@dataclass(frozen=True, kw_only=True)
class StreamColumn:
    """A column of a stream, as messages give it; this kind is any number or time.

    Attributes:
        name: of the column.
        optional: whether a message or a request may lack it, which is a missing value then.
    """

    name: str
    optional: bool = False
    is_id = False

    @property
    def remedy(self) -> str:
        """What to do if it is missing from a message."""
        return "give null for a missing value"

    def of_rows(self, rows: Sequence[Row], damage: Damage, *, as_text: bool = False) -> pa.Array:
        """Return the values of all rows as Arrow text or numbers, as lists of text, or as vectors.

        Values of one type are taken as they are. Others become text first, which says what is
        wrong.

        Args:
            rows: column -> value, as in JSON.
            damage: takes what is wrong or missing.
            as_text: whether numbers become text, too.
        """
        import pyarrow as pa

        values = None if as_text else self._values(rows)
        found = None if values is None else self._of_one_type(values)
        if found is not None:
            return found
        return pa.array(self.cells(rows, damage, self.text_of), pa.string())

    def _values(self, rows: Sequence[Row]) -> list[Json] | None:
        """Return the values of all rows; None if one lacks the column and may not."""
        name = self.name
        if self.optional:
            return [row.get(name) for row in rows]
        try:
            return [row[name] for row in rows]
        except KeyError:
            return None

    def _of_one_type(self, values: Sequence[Json]) -> pa.Array | None:
        """Return text or numbers whose values surely count; None if some may not.

        What it returns has the ids, numbers and times that the texts of the values have.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        kinds = {*map(type, values)} - {NoneType}
        try:
            if kinds <= {str}:
                return pa.array([value or None for value in values], pa.string())
            if kinds == {int} and self.is_id:
                whole = pa.array(values, pa.int64())
                return whole if pc.min(whole).as_py() > -_WHOLE else None
            if kinds <= {int, float} and not self.is_id:
                return pa.array(values, pa.float64())  # refuses integers that it would round
        except (ValueError, OverflowError):
            pass
        return None

    def cells(
        self, rows: Sequence[Row], damage: Damage, convert: Callable[[Json], Cell]
    ) -> list[Cell | None]:
        """Return the values of all rows, converted; None where one is missing or wrong.

        A row that is damaged already gets None, too: what else is wrong there takes time to say.
        """
        cells: list[Cell | None] = [None] * len(rows)
        for i, row in enumerate(rows):
            if i in damage.reasons:
                continue
            try:
                cells[i] = convert(row.get(self.name) if self.optional else row[self.name])
            except KeyError:
                near = get_close_matches(self.name, map(str, row), n=1, cutoff=0.8)
                instead = f", but {near[0]!r}" if near else ""
                damage.reasons[i] = f"no {self.name!r}{instead}; {self.remedy}"
            except ValueError as error:
                damage.reasons[i] = str(error)
        return cells

    def text_of(self, value: Json) -> str | None:
        """Return the text that a log would have; None for a missing value.

        Raises:
            ValueError: it has none.
        """
        return text_of_value(value, self.name, is_id=self.is_id)


@dataclass(frozen=True, kw_only=True)
class IdColumn(StreamColumn):
    """A column whose values become ids."""

    is_id = True


@dataclass(frozen=True, kw_only=True)
class ListRules:
    """How a column with several values per row is read, and combined to one embedding.

    Attributes:
        separator: what stands between the values of a text.
        max_values: keep at most so many values of a row; 0: all.
        keep: which ones to keep then: "first" or "last".
        combiner: one of `choices.COMBINERS`.
    """

    separator: str
    max_values: int = 0
    keep: str = "first"
    combiner: str = "mean"


class ColumnIds(NamedTuple):
    """Ids of one column, int64 [m], and how many each row has, int32 [n]; None: one each."""

    ids: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int32] | None = None


@dataclass(frozen=True, kw_only=True)
class CategoricalColumn(IdColumn):
    """An input of ids.

    Attributes:
        rules: when its ids get and lose their embedding rows.
        buckets: number of buckets that its ids are hashed into; None keeps all ids apart.
        lists: how its values are read if a row may have several; None: each row has one.
        table: the column whose ids and embeddings it has, too; None: it has its own.
        text: whether "47.0" and "47" are two values; else both are 47.
    """

    rules: FieldRules = field(default_factory=FieldRules)
    buckets: int | None = None
    lists: ListRules | None = None
    table: str | None = None
    text: bool = False

    def of_rows(self, rows: Sequence[Row], damage: Damage, *, as_text: bool = False) -> pa.Array:
        """Return the values of all rows, lists of text or numbers if a row may have several."""
        import pyarrow as pa

        if self.lists is None:
            return super().of_rows(rows, damage, as_text=as_text)
        found = self._lists_of_one_type(self._values(rows))
        if found is not None:
            return found
        lists = self.cells(rows, damage, self.texts_of)
        return pa.array([each or [] for each in lists], pa.list_(pa.string()))

    def _lists_of_one_type(self, values: Sequence[Json] | None) -> pa.Array | None:
        """As `_of_one_type`, of lists, or of texts with the separator; None for no values, too."""
        import pyarrow as pa

        kinds = {*map(type, values or ())} - {NoneType}
        if kinds == {str}:
            lists = [text.split(self.lists.separator) if text else () for text in values]
        elif kinds == {list}:
            lists = [each or () for each in values]
        else:
            return None
        flat = self._of_one_type([*chain.from_iterable(lists)])
        if flat is None or flat.null_count:  # a list has no missing values
            return None
        starts = np.cumsum([0, *map(len, lists)], dtype=np.int32)
        return pa.ListArray.from_arrays(pa.array(starts), flat)

    def texts_of(self, value: Json) -> list[str]:
        """Return the texts of several values, without missing ones, as `lists_of_values` does.

        Args:
            value: list of values, or text with the separator between them; None is an empty list.

        Raises:
            ValueError: it is anything else, or a value in it cannot be an id.

        >>> tags = CategoricalColumn(name="tags", lists=ListRules(separator="|"))
        >>> tags.texts_of("a||b"), tags.texts_of([7, None, "a"])
        (['a', 'b'], ['7', 'a'])
        """
        if isinstance(value, str):
            value = value.split(self.lists.separator)
        elif value is not None and not isinstance(value, list | tuple):
            raise ValueError(
                f"{self.name} is {value!r:.60} ({type(value).__name__}); give a list, or text with "
                f"{self.lists.separator!r} between the values"
            )
        texts = [self.text_of(each) for each in value or ()]
        return [text for text in texts if text]

    def ids(self, values: ArrowColumn, field: int, owner: CategoricalColumn) -> ColumnIds:
        """Return the ids of all rows, or their buckets.

        Args:
            values: of `of_rows` or a file; null is a missing value. Lists are without nulls.
            field: number of the column that owns its table.
            owner: that column, whose buckets it has, and whose text it keeps.
        """
        lengths = None
        if self.lists is not None:
            if self.lists.max_values:
                values = cut_lists(values, self.lists.max_values, self.lists.keep)
            values = one_array(values)
            lengths = np.asarray(values.value_lengths()).astype(np.int32)
            values = values.flatten()
        ids = text_ids(values, keep_text=owner.text)
        if owner.buckets is not None:
            from cowclip_merlin.online.events.buckets import bucket_ids  # imports numba

            ids = bucket_ids(ids, field, owner.buckets)
        return ColumnIds(ids, lengths)


@dataclass(frozen=True, kw_only=True)
class ContinuousColumn(StreamColumn):
    """An input of one number.

    Attributes:
        scaling: how its values are transformed.
    """

    scaling: NumberScaling = field(default_factory=NumberScaling)

    def numbers(self, values: pa.Array, damage: Damage) -> npt.NDArray[np.float32]:
        """Return the numbers of all rows as the model takes them, float32 [n, 1]."""
        import pyarrow.compute as pc

        def given(i: int) -> str:
            return f"{self.name} is {damage.text(values, i, self.name)!r:.60}"

        found = floats(values)
        wrong = np.asarray(pc.and_(pc.is_null(found), pc.is_valid(values)))
        damage.add(wrong, lambda i: f"{given(i)}, not a number")
        raw = found.fill_null(0).to_numpy(zero_copy_only=False)
        infinite = ~np.isfinite(raw)
        damage.add(infinite, lambda i: f"{given(i)}, not a finite number")
        scaled = self.scaling.apply(np.where(infinite, 0, raw))
        large = ~np.isfinite(scaled)
        damage.add(large, lambda i: f"{given(i)}, too large for a 32-bit number")
        return scaled[:, None]


@dataclass(frozen=True, kw_only=True)
class VectorColumn(StreamColumn):
    """An input of a vector of numbers, which the model reads unscaled.

    Attributes:
        length: of each vector.
        separator: what stands between the numbers of a text.
    """

    length: int
    separator: str = "|"

    @property
    def remedy(self) -> str:
        """What to do if it is missing from a message."""
        return f"give its {self.length} numbers"

    def of_rows(self, rows: Sequence[Row], damage: Damage, *, as_text: bool = False) -> pa.Array:
        """Return lists of float32 numbers, zeros where one is wrong."""
        import pyarrow as pa

        vectors = self._of_numbers(self._values(rows))
        if vectors is None:
            vectors = np.zeros((len(rows), self.length), np.float32)
            for vector, cell in zip(vectors, self.cells(rows, damage, self.vector_of)):
                vector[:] = 0 if cell is None else cell
        return pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), self.length)

    def _of_numbers(self, values: Sequence[Json] | None) -> npt.NDArray[np.float32] | None:
        """Return vectors that are lists of finite numbers; None if one may be none."""
        if {*map(type, values or ())} != {list} or {*map(len, values)} != {self.length}:
            return None
        flat = [*chain.from_iterable(values)]
        return _finite(flat) if {*map(type, flat)} <= {int, float} else None

    def numbers(self, values: pa.Array, damage: Damage) -> npt.NDArray[np.float32]:
        """Return the vectors of all rows, float32 [n, length]."""
        return np.asarray(values.flatten()).reshape(len(values), self.length)

    def vector_of(self, value: Json) -> npt.NDArray[np.float32]:
        """Return the numbers of a vector, float32 [length].

        Args:
            value: list of numbers, or text with the separator between them.

        Raises:
            ValueError: it is anything else, has another length, or a number that is missing or not
                finite in float32.

        >>> column = VectorColumn(name="x", length=2)
        >>> column.vector_of([1, -2.5]), column.vector_of("1|-2.5")
        (array([ 1. , -2.5], dtype=float32), array([ 1. , -2.5], dtype=float32))
        """
        name, length = self.name, self.length
        if isinstance(value, list | tuple):
            if len(value) == length and {*map(type, value)} <= {int, float}:
                vector = _finite(value)
                if vector is not None:
                    return vector
            cells = [
                x if type(x) is float else _number_or_text(x, name, j) for j, x in enumerate(value)
            ]
        elif value is None or isinstance(value, str):
            cells = vector_values(value, self.separator)
        else:
            raise ValueError(
                f"{name} is {value!r:.60} ({type(value).__name__}); give a list of {length} "
                f"numbers, or text with {self.separator!r} between them"
            )
        if len(cells) != length:
            raise ValueError(vector_damage(name, cells, self.separator, length))
        vector = _float32([number_of_text(x) if type(x) is str else x for x in cells])
        if not np.isfinite(vector).all():
            j = int(np.isfinite(vector).argmin())
            cell = repr(cells[j]) if type(cells[j]) is float else cells[j]
            raise ValueError(damage_in_vector(name, j, cell))
        return vector


def _finite(values: Sequence[float]) -> npt.NDArray[np.float32] | None:
    """Return numbers as float32; None if one is not finite."""
    try:
        vector = _float32(values)
    except OverflowError:  # an integer beyond float64
        return None
    return vector if np.isfinite(vector).all() else None


def _float32(values: Sequence[float | None]) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):  # infinite, which is refused
        return np.array(values, np.float64).astype(np.float32)


def _number_or_text(value: Json, name: str, j: int) -> float | str | None:
    """A value of a vector as a number, or as text if it is no plain one; None if it is missing."""
    if type(value) is int and abs(value) < _WHOLE:
        return float(value)
    text = text_of_value(value, f"{name}[{j}]", is_id=False)
    return None if text is None else text.strip(" ")


def text_of_value(value: Json, name: str, *, is_id: bool) -> str | None:
    """The text that a log would have; None for a missing value.

    Args:
        value: None, text, a boolean or a number; for a time a date, too.
        name: of its column, for messages.
        is_id: whether it becomes an id: then a float must be whole and below 2**53, as others have
            no unique text.

    Raises:
        ValueError: it is anything else.

    >>> text_of_value(47.0, "user", is_id=True), text_of_value(0.5, "age", is_id=False)
    ('47', '0.5')
    """
    if value is None or value == "":
        return None
    if isinstance(value, str):
        return _checked_text(value, name)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, numbers.Integral):
        return _integer_text(int(value), name)
    if isinstance(value, numbers.Real) and not is_id:
        return repr(float(value))
    if isinstance(value, numbers.Real) and value == value // 1 and abs(value) < EXACT:
        return str(int(value))
    if isinstance(value, date) and not is_id:
        return value.isoformat()
    what = "text or a whole number" if is_id else "a number"
    raise ValueError(f"{name} is {value!r:.60} ({type(value).__name__}); give {what}")


def _checked_text(text: str, name: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{name} is {text!a:.60}, which UTF-8 cannot express") from None
    return text


def _integer_text(value: int, name: str) -> str:
    """Digits of a whole number; Python refuses to print thousands of them."""
    if value.bit_length() > 1000:
        raise ValueError(f"{name} has hundreds of digits; give it as text")
    return str(value)


def floats(column: ArrowColumn) -> pa.Array:
    """Numbers of a column of text or numbers, float64; null where a value is missing or wrong."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_int64(column.type) or pa.types.is_float64(column.type):
        return pc.cast(column, pa.float64(), safe=False)  # rounds as Arrow does with a text
    return numbers_of_texts(column)
