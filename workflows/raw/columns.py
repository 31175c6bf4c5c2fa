"""The columns of a raw log: a class for each kind says what it reads, refuses, stages and writes.

Readers make Arrow tables of the columns as a file has them, and `parsed_rows` checks these. A new
kind of column is a class here; `LogFormat.roles` says which columns have it. Kinds that others are
made of are in `made_columns`.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cowclip_merlin.types import ArrowColumn, Json, JsonObject
from cowclip_merlin.workflows.nvtabular_graph import Statistics, scaled
from cowclip_merlin.workflows.raw.values.multi_values import (
    cut_lists,
    lists_of_values,
    vector_damage,
    vector_values,
    vectors_of_values,
)
from cowclip_merlin.workflows.raw.values.numbers import (
    LARGEST,
    are_weights,
    float_of,
    is_missing,
    is_number,
    is_text,
    label_damage,
    label_of,
    number_of,
    numbers_of_column,
    parse_labels,
    plain,
    regression_damage,
    weight_damage,
)
from cowclip_merlin.workflows.raw.values.value_text import (
    Damage,
    id_text,
    printed_text,
    text_of_values,
    whole_texts,
    without_empty,
)

if TYPE_CHECKING:
    from cowclip_merlin.workflows.encoder import Encoder

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Column:
    """A column of a log; most kinds are numbers.

    Attributes:
        name: in the file.
    """

    name: str
    any_text = False  # whether every text is a value as it is
    place = 2  # in a prepared file: 0 before the labels, 1 a label, 2 behind them
    optional = False  # whether it is a label that may be missing beside another one

    def cell_type(self, *, coded: bool) -> pa.DataType:
        """Return the type as which Arrow reads the cells of a text file, if all are right.

        Args:
            coded: whether texts of ids get a dictionary.
        """
        return pa.float64()

    @property
    def json_type(self) -> pa.DataType:
        """Type of what `of_json` returns."""
        return self.cell_type(coded=False)

    def of_json(self, value: Json) -> Json:
        """Return a value of a JSON line as one of `json_type`; NaN for a wrong number.

        Raises:
            Damage: if it is wrong and has no such value.
        """
        return None if value is None or value == "" else number_of(value)

    def check(self, values: ArrowColumn, where: str) -> tuple[ArrowColumn, Bools | None]:
        """Return the values as all readers give them, and which are right, bool [n]; None: all.

        Args:
            values: as a file has them, [n].
            where: the file and the column, for messages.

        Raises:
            InputError: if a column of this type cannot have right values.
        """
        return numbers_of_column(values, where), None

    def damage(self, value: object) -> str:
        """Describe what is wrong with one value as a file has it; "" if nothing is."""
        return ""

    def parts(self, values: ArrowColumn) -> dict[str, ArrowColumn]:
        """Return the columns that are made of the values of `check`, by name."""
        return {}

    @property
    def made_values(self) -> dict[str, str]:
        """Which values `prepare` makes of those of a log, in words, by the name of the column."""
        return {}

    def staged(self, values: ArrowColumn, *, coded: bool, whole: dict[str, str]) -> ArrowColumn:
        """Return right values with the type to stage.

        Args:
            values: of `check`, [n].
            coded: whether texts of ids get a dictionary.
            whole: gets the first text that is read as a whole number, by column.
        """
        return values

    def encoded(
        self, values: pa.Array, encoder: Encoder, rows: Bools, block: int
    ) -> ArrowColumn | npt.NDArray:
        """Return staged values with codes for texts, and without missing numbers.

        Args:
            values: of `staged`, [n].
            encoder: knows the codes.
            rows: those to fit on, bool [n].
            block: number of the block.
        """
        return values

    def written(self, values: ArrowColumn, ids: Path | None, statistics: Statistics) -> ArrowColumn:
        """Return encoded values as a prepared folder has them.

        Args:
            values: of `encoded`, [n].
            ids: folder with the id of each code of a vocabulary, int32; None: codes are ids.
            statistics: the ranges of the numbers.
        """
        return values

    def feature(self, statistics: Statistics) -> JsonObject:
        """Return the schema of what is written, in the JSON of TensorFlow Metadata."""
        return _feature(self.name, "FLOAT", 32)


@dataclass(frozen=True)
class Label(Column):
    """What a model predicts: 0 or 1, or, of a regression, any number.

    Attributes:
        regression: whether it is a number.
        optional: whether it may be missing in a row that has another label. It is a float then.
    """

    regression: bool = False
    optional: bool = False
    place = 1

    def cell_type(self, *, coded: bool) -> pa.DataType:
        return pa.float64() if self.regression else pa.string()

    def of_json(self, value: Json) -> Json:
        if self.regression or value is None or value == "":
            return super().of_json(value)
        return str(value)

    def check(self, values: ArrowColumn, where: str) -> tuple[ArrowColumn, Bools]:
        values = plain(values)
        if self.regression:
            found = numbers_of_column(values, where)
            right = pc.fill_null(pc.less_equal(pc.abs(found), LARGEST), False)
        else:
            if is_text(values.type):
                values = without_empty(values.cast(pa.string()))
                found = parse_labels(values)
            else:
                given = numbers_of_column(values, where)
                found = pc.index_in(given, pa.array([0.0, 1.0])).cast(pa.int8())
            right = found.is_valid()
        right = pc.or_(right, values.is_null()) if self.optional else right
        return found, np.asarray(right, bool)

    def damage(self, value: object) -> str:
        if value is None and not self.optional:
            return f"{self.name} is missing, neither 0 nor 1"
        if self.optional and is_missing(value):
            return ""
        if self.regression:
            number = abs(number_of(value)) <= LARGEST
            return "" if number else regression_damage(self.name, value)
        label = label_of(value if isinstance(value, str) else number_of(value))
        return label_damage(self.name, value) if label is None else ""

    def staged(self, values: ArrowColumn, *, coded: bool, whole: dict[str, str]) -> ArrowColumn:
        if self.optional:  # a missing label is NaN
            return values.cast(pa.float32(), safe=False).fill_null(np.nan)
        return values.cast(pa.int8())

    def written(self, values: ArrowColumn, ids: Path | None, statistics: Statistics) -> ArrowColumn:
        return pa.array(np.asarray(values), from_pandas=True)  # a missing label is null

    def feature(self, statistics: Statistics) -> JsonObject:
        kind, bits = ("FLOAT", 32) if self.optional else ("INT", 8)
        tag = "regression" if self.regression else "binary_classification"
        feature = _feature(self.name, kind, bits, "target", tag)
        scale = zip(("mean", "spread"), statistics.scales.get(self.name, ()))
        feature["annotation"]["extraMetadata"][0].update(scale)
        return feature


@dataclass(frozen=True)
class Ids(Column):
    """A category: one id per row, by the text of the value.

    Attributes:
        table: name of its table, which is that of a column.
        keeps_text: whether "47.0" and "47" are two values.
        printed: whether values need no unique text.
    """

    table: str = ""
    keeps_text: bool = False
    printed: bool = False
    any_text = True
    place = 0

    def cell_type(self, *, coded: bool) -> pa.DataType:
        return pa.dictionary(pa.int32(), pa.string()) if coded else pa.string()

    def of_json(self, value: Json) -> Json:
        return id_text(self.name, value)

    def check(self, values: ArrowColumn, where: str) -> tuple[ArrowColumn, Bools | None]:
        return (printed_text if self.printed else text_of_values)(values, where=where), None

    def staged(self, values: ArrowColumn, *, coded: bool, whole: dict[str, str]) -> ArrowColumn:
        if not self.keeps_text:  # "47.0" becomes "47"
            values, first = whole_texts(values)
            if first:
                whole.setdefault(self.name, first)
        encode = coded and not pa.types.is_dictionary(values.type)
        return values.dictionary_encode() if encode else values

    def encoded(
        self, values: pa.Array, encoder: Encoder, rows: Bools, block: int
    ) -> npt.NDArray[np.int32]:
        return encoder.codes(self, values, rows, block)

    def written(self, values: ArrowColumn, ids: Path | None, statistics: Statistics) -> ArrowColumn:
        values = values.combine_chunks()
        if ids is None:
            return values
        id_of = np.memmap(ids / f"{self.table}.int32", np.int32, "r")
        if not pa.types.is_list(values.type):
            return pa.array(id_of[np.asarray(values)])
        return pa.ListArray.from_arrays(values.offsets, pa.array(id_of[np.asarray(values.values)]))

    def feature(self, statistics: Statistics) -> JsonObject:
        largest = str(statistics.cardinalities[self.name] - 1)
        domain = {"name": self.table, "max": largest, "isCategorical": True}
        return _feature(self.name, "INT", 32, "categorical") | {"intDomain": domain}


@dataclass(frozen=True)
class Lists(Ids):
    """A category with several values per row.

    Attributes:
        separator: what stands between the values of a text.
        most: so many values of a row stay; 0: all.
        keep: which ones: "first" or "last".
    """

    separator: str = "|"
    most: int = 0
    keep: str = "first"
    any_text = False

    def cell_type(self, *, coded: bool) -> pa.DataType:
        return pa.string()

    @property
    def json_type(self) -> pa.DataType:
        return pa.list_(pa.string())

    def of_json(self, value: Json) -> Json:
        if value is None:
            return []
        if isinstance(value, list):
            return [id_text(self.name, each) for each in value]
        if not isinstance(value, str):
            raise Damage(
                f"{self.name} is {value!r:.60}; give a list, or text with {self.separator!r}"
            )
        if value.startswith("[") and value.endswith("]"):
            raise Damage(f"{self.name} is {value!r:.60}, the print of a list; give a list of JSON")
        return [id_text(self.name, each) for each in value.split(self.separator)]

    def check(self, values: ArrowColumn, where: str) -> tuple[ArrowColumn, Bools | None]:
        return lists_of_values(values, self.separator, where=where), None

    def staged(self, values: ArrowColumn, *, coded: bool, whole: dict[str, str]) -> ArrowColumn:
        values = super().staged(values, coded=False, whole=whole)
        return cut_lists(values, self.most, self.keep) if self.most else values

    def encoded(self, values: pa.Array, encoder: Encoder, rows: Bools, block: int) -> pa.ListArray:
        sizes = np.asarray(values.value_lengths())
        texts = values.flatten().dictionary_encode()
        codes = encoder.codes(self, texts, np.repeat(rows, sizes), block)
        offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(codes))

    def feature(self, statistics: Statistics) -> JsonObject:
        return _with_lists(super().feature(statistics), 0, self.most or None)


@dataclass(frozen=True)
class Number(Column):
    """A number that a model reads, scaled to [0, 1]; a missing one counts as 0.

    Attributes:
        whole: whether it must be a whole number.
    """

    whole: bool = False
    place = 0

    def cell_type(self, *, coded: bool) -> pa.DataType:
        return pa.int64() if self.whole else pa.float64()

    @property
    def json_type(self) -> pa.DataType:
        return pa.float64()

    def check(self, values: ArrowColumn, where: str) -> tuple[ArrowColumn, Bools | None]:
        found = numbers_of_column(values, where, self.cell_type(coded=False))
        if not pa.types.is_floating(found.type):
            return found, None
        right = pc.is_finite(found)
        if self.whole:
            right = pc.and_(right, pc.equal(found, pc.floor(found)))
        return found, np.asarray(pc.fill_null(right, True), bool)

    def damage(self, value: object) -> str:
        if is_missing(value):
            return ""
        what = "a whole number" if self.whole else "a number"
        if isinstance(value, str):
            right = is_number(value, whole=self.whole)
            return "" if right else f"{self.name} is {value!r}, not {what}"
        number = number_of(value)
        if not isinstance(value, numbers.Real | Decimal):
            return f"{self.name} is {value!r:.60}, not a number"
        shown = f"{value:g}" if isinstance(value, float) else f"{value!s:.60}"
        if not math.isfinite(number):
            return f"{self.name} is {shown}, not a finite number"
        wrong = self.whole and number != math.floor(number)
        return f"{self.name} is {shown}, not {what}" if wrong else ""

    def staged(self, values: ArrowColumn, *, coded: bool, whole: dict[str, str]) -> ArrowColumn:
        """As float64, as pandas would do; integers above 2**53 lose their last digits."""
        return values.cast(pa.float64(), safe=False)

    def encoded(self, values: pa.Array, encoder: Encoder, rows: Bools, block: int) -> npt.NDArray:
        return encoder.numbers(self.name, values, rows)

    def written(self, values: ArrowColumn, ids: Path | None, statistics: Statistics) -> pa.Array:
        low, high = statistics.minimum[self.name], statistics.maximum[self.name]
        return pa.array(scaled(np.asarray(values), low, high))

    def feature(self, statistics: Statistics) -> JsonObject:
        return _feature(self.name, "FLOAT", 32, "continuous")


@dataclass(frozen=True)
class Weight(Column):
    """The weight of a row, a number of 0 or more; models do not read it."""

    def check(self, values: ArrowColumn, where: str) -> tuple[ArrowColumn, Bools]:
        found = numbers_of_column(values, where)
        return found, np.asarray(are_weights(found), bool)

    def damage(self, value: object) -> str:
        return "" if 0 <= number_of(value) <= LARGEST else weight_damage(self.name, value)

    def staged(self, values: ArrowColumn, *, coded: bool, whole: dict[str, str]) -> ArrowColumn:
        return values.cast(pa.float64(), safe=False).cast(pa.float32(), safe=False)


@dataclass(frozen=True)
class Vector(Column):
    """A vector of numbers per row, which a model reads as they are.

    Attributes:
        length: of each vector; 0: not known yet.
        separator: what stands between the numbers of a text.
    """

    length: int = 0
    separator: str = "|"

    def cell_type(self, *, coded: bool) -> pa.DataType:
        return pa.string()

    @property
    def json_type(self) -> pa.DataType:
        return pa.list_(pa.float64())

    def of_json(self, value: Json) -> Json:
        return [float_of(each) for each in vector_values(value, self.separator)]

    def check(self, values: ArrowColumn, where: str) -> tuple[ArrowColumn, Bools]:
        return vectors_of_values(values, self.separator, self.length, where=where)

    def damage(self, value: object) -> str:
        return vector_damage(self.name, value, self.separator, self.length)

    def feature(self, statistics: Statistics) -> JsonObject:
        feature = _feature(self.name, "FLOAT", 32, "continuous")
        return _with_lists(feature, self.length, self.length)


def _feature(name: str, kind: str, bits: int, *tags: str) -> JsonObject:
    about = {"is_list": False, "dtype_item_size": float(bits), "_dims": [], "is_ragged": False}
    found = {"tag": list(tags)} if tags else {}
    return {"name": name, "type": kind, "annotation": found | {"extraMetadata": [about]}}


def _with_lists(feature: JsonObject, least: int, most: int | None) -> JsonObject:
    """Return a feature whose rows have at least and at most so many values; None: any number."""
    limits = {"min": least, "max": most}
    count = {name: str(limit) for name, limit in limits.items() if limit}
    is_ragged = least != most
    size = [float(least), None if most is None else float(most)] if is_ragged else float(least)
    about = {"is_list": True, "is_ragged": is_ragged, "_dims": [[0.0, None], size]}
    feature["annotation"]["extraMetadata"][0].update(about)
    return feature | {"valueCount": count}
