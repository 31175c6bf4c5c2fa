"""Kinds of columns: each tells a damaged value, and a new one is a class that all readers use."""

import json
from dataclasses import dataclass, fields
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from data import frame, write
from hypothesis import given
from hypothesis import strategies as st

from cowclip_merlin.workflows import LogFormat, PrepareSettings, prepare
from cowclip_merlin.workflows.raw.columns import Column, Label, Number, Vector, Weight
from cowclip_merlin.workflows.raw.parsed_rows import NOT_READABLE, checked, damage_of
from cowclip_merlin.workflows.raw.values.numbers import read_numbers

KINDS = [
    Number("c"), Weight("c"), Label("c"), Label("c", optional=True),
    Label("c", regression=True, optional=True), Vector("c", 2),
]  # fmt: skip
TEXTS = ["", "1", "0", "2.5", " 7", "x", "nan", "inf", "1e400", "-1", "YES", "1|2", "1|x", "1_0"]
VALUES = [None, *TEXTS, True, False, 0, 1, 2, 0.5, 1.0, -1.0, 1e300, 2**70, {}, [1]]
VALUES += [[1.0, 2.0], [True, 1.0], [None, 1.0], ["1", 2], [1e39, 1.0]]


@pytest.mark.parametrize("column", KINDS, ids=str)
@given(values=st.lists(st.sampled_from(VALUES), max_size=9))
def test_a_row_is_damaged_if_its_value_has_a_reason(column, values):
    lines = pa.table({"c": pa.array([column.of_json(x) for x in values], column.json_type)})
    table, good = checked(pa.concat_tables([lines[:2], lines[2:]]), [column], "x")
    assert len(table) == len(values)
    reasons = [damage_of([column], {"c": value}) for value in values]
    assert [reason == NOT_READABLE for reason in reasons] == good.tolist()


@pytest.mark.parametrize("whole", [True, False])
def test_a_cell_of_text_is_damaged_if_it_has_a_reason(whole):
    column, texts = Number("c", whole=whole), [*TEXTS, "1.0", "1e3", "0x1f", "007", str(2**63)]
    cells = pa.array([text or None for text in texts])
    numbers, right = read_numbers(cells, column.cell_type(coded=False))
    _, good = checked(pa.table({"c": numbers}), [column], "x")
    reasons = [damage_of([column], {"c": text}) for text in texts]
    assert [reason == NOT_READABLE for reason in reasons] == (good & right).tolist()


FORM = r"^\d{4}-\d{2}-\d{2}$"


@dataclass(frozen=True)
class Day(Column):
    """A day in text, such as 2001-01-31, which is written as days since 1970."""

    def cell_type(self, *, coded):
        return pa.string()

    json_type = pa.string()

    def of_json(self, value):
        return None if value is None else str(value)

    def check(self, values, where):
        right = np.asarray(pc.fill_null(pc.match_substring_regex(values, FORM), False))
        days = [
            date.fromisoformat(x) if good else None for x, good in zip(values.to_pylist(), right)
        ]
        return pa.array(days, pa.date32()), right

    def damage(self, value):
        return f"{self.name} is {value!r}, no day"

    def staged(self, values, *, coded, whole):
        return values.cast(pa.int32())

    def feature(self, statistics):
        return {"name": self.name, "type": "INT"}


class WithDay(LogFormat):
    @property
    def roles(self):
        return (*super().roles, Day("day"))


class Settings(PrepareSettings):
    def log_format(self):
        usual = super().log_format()
        return WithDay(**{each.name: getattr(usual, each.name) for each in fields(usual)})


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_new_kind_of_column_is_prepared(tmp_path, kind):
    rows = frame().head(40).copy()
    rows["day"] = [f"2001-01-{1 + i % 28:02}" for i in range(40)]
    rows.at[7, "day"], rows.at[8, "day"] = "soon", None
    file = write(tmp_path / f"log.{kind}", rows[["click", "user", "age", "day"]])
    chosen = {"label": "click", "categorical": ("user",), "continuous": ("age",)}
    more = {"kind": "table", "split": "time", "max_bad_fraction": 0.1}
    data = prepare(Settings(files=(file,), out=tmp_path / "DATA", **chosen, **more))
    tables = [pq.read_table(x) for split in ("train", "test") for x in data.files(split)]
    days = pa.concat_tables(tables)["day"].cast(pa.date32())
    assert [str(day) for day in days] == [x for i, x in enumerate(rows["day"]) if i not in (7, 8)]
    aside = (data.path / "damaged" / "lines.tsv").read_text().splitlines()
    missing = "''" if kind == "csv" else "None"
    assert [x.split("\t")[2] for x in aside] == [
        "day is 'soon', no day",
        f"day is {missing}, no day",
    ]
    schema = json.loads((data.path / "train" / ".merlin" / "schema.json").read_text())
    assert {"name": "day", "type": "INT"} in schema["feature"]
