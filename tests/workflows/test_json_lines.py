"""JSON lines as raw input: what `prepare` and `read_log` read, held against parquet of the rows."""

import gzip
import json

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cowclip_merlin.errors import InputError
from cowclip_merlin.loading.columns import read_columns
from cowclip_merlin.workflows import LogFormat, PrepareSettings, prepare, read_log

TABLE = LogFormat(
    kind="table",
    label="y",
    categorical=("user", "tags"),
    continuous=("age",),
    multi={"tags": "|"},
    vectors={"v": 2},
)
SETTINGS = {"kind": "table", "label": "y", "categorical": ("user",), "multi": ("tags",)}
SETTINGS |= {"continuous": ("age",), "vector": ("v",), "split": "time"}

IDS = st.none() | st.text(st.characters(exclude_categories=("Cs",)), max_size=3)
WHOLE = st.integers(-(2**63), 2**63 - 1)
NUMBERS = st.none() | st.floats(-1e9, 1e9)
VECTOR = st.lists(st.floats(-1e9, 1e9, width=32), min_size=2, max_size=2)


def rows_of(ids):
    keys = {"y": st.integers(0, 1), "user": ids, "age": NUMBERS, "v": VECTOR}
    keys |= {"tags": st.none() | st.lists(ids, max_size=3)}
    return st.lists(st.fixed_dictionaries(keys), min_size=1, max_size=9)


@given(data=st.data(), text=st.booleans(), absent=st.booleans(), escaped=st.booleans())
def test_rows_are_those_of_parquet(tmp_path_factory, data, text, absent, escaped):
    folder = tmp_path_factory.mktemp("rows")
    rows = data.draw(rows_of(IDS if text else st.none() | WHOLE))
    kind = pa.string() if text else pa.int64()
    kinds = {"y": pa.int64(), "user": kind, "age": pa.float64(), "tags": pa.list_(kind)}
    kinds["v"] = pa.list_(pa.float64())
    columns = {name: pa.array([row[name] for row in rows], kinds[name]) for name in kinds}
    pq.write_table(pa.table(columns), folder / "t.parquet")
    first, *others = rows  # the first row has all keys
    if absent:  # a missing key is a null
        others = [{k: x for k, x in row.items() if x is not None} for row in others]
    lines = [json.dumps(row, ensure_ascii=escaped) for row in [first, *others]]
    (folder / "t.jsonl").write_text("\n".join(lines), encoding="utf-8")
    files = (folder / "t.jsonl", folder / "t.parquet")
    found, expected = (read_log(file, TABLE, labels=True).to_dict("list") for file in files)
    assert repr(found) == repr(expected)


LINE = {"y": 1, "user": 7, "tags": ["a"], "age": 0.5, "v": [1, 2]}
BAD = {
    '{"y": 1,': "no JSON",
    "[1]": "no JSON object",
    "": "no JSON",
    '{"y": 1, "y": 0, "v": [1, 2]}': "the key 'y' occurs twice",
    json.dumps(LINE | {"y": 2}): "y is 2, neither 0 nor 1",
    json.dumps(LINE | {"y": None}): "y is missing",
    json.dumps(LINE | {"user": 0.5}): "user is 0.5, whose text is not unique",
    json.dumps(LINE | {"user": 2.0**53}): "whose text is not unique",
    json.dumps(LINE | {"user": [1]}): "user has a list of values; name it in `multi`",
    json.dumps(LINE | {"user": {"id": 1}}): "user is an object",
    json.dumps(LINE | {"user": "\ud800"}): "user has characters that are not UTF-8",
    json.dumps(LINE | {"tags": 3}): "tags is 3; give a list",
    json.dumps(LINE | {"tags": [["a"]]}): "tags has a list of values",
    json.dumps(LINE | {"tags": "['a']"}): "the print of a list",
    json.dumps(LINE | {"age": float("nan")}): "NaN is no JSON; write null",
    json.dumps(LINE | {"age": "old"}): "age is 'old', not a number",
    json.dumps(LINE | {"age": [1]}): "age is [1], not a number",
    json.dumps(LINE | {"age": 10**400}): "age is 1000",
    json.dumps(LINE)[:-1] + ', "age": 1e999}': "occurs twice",
    json.dumps(LINE).replace("0.5", "1e999"): "age is inf, not a finite number",
    json.dumps(LINE | {"v": [1]}): "v has 1 numbers, not 2",
    json.dumps(LINE | {"v": [1, "a"]}): "v[1] is 'a', not a finite number",
    json.dumps(LINE | {"v": [1, True]}): "v[1] is True, not a finite number",
    json.dumps(LINE | {"v": [1, None]}): "v[1] is missing",
    json.dumps(LINE | {"v": None}): "v is missing",
}  # fmt: skip


@pytest.mark.parametrize("line", BAD)
def test_a_bad_line_is_named(tmp_path, line):
    good = json.dumps(LINE)
    (tmp_path / "t.jsonl").write_text(f"{good}\n{line}\n{good}\n", encoding="utf-8")
    with pytest.raises(InputError) as error:
        read_log(tmp_path / "t.jsonl", TABLE, labels=True)
    assert str(error.value).startswith(f"{tmp_path}/t.jsonl:2: ") and BAD[line] in str(error.value)
    found = read_log(tmp_path / "t.jsonl", TABLE, labels=True, max_bad_fraction=0.5)
    assert list(found.index) == [0, 2]


def test_values_of_several_types_have_the_text_of_each(tmp_path):
    values = ["7", 7, 7.0, True, "", None, "é"]
    lines = [json.dumps(LINE | {"user": value, "age": "2.5"}) for value in values]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    frame = read_log(tmp_path / "t.jsonl", TABLE)
    assert frame["user"].tolist() == ["7", "7", "7", "true", None, None, "é"]
    assert set(frame["age"]) == {2.5}


def test_kept_values_are_text(tmp_path):
    lines = [json.dumps(LINE | {"note": value}) for value in ("a", 1.5, {"b": [1]}, None)]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    frame = read_log(tmp_path / "t.jsonl", TABLE, keep=["note"])
    assert frame["note"].tolist() == ["a", "1.5", '{"b": [1]}', None]


def log_lines(rows):
    return [json.dumps(LINE | {"y": i % 2, "user": i % 5, "v": [i, -i]}) for i in range(rows)]


def test_prepare_reads_patterns_in_order_and_sets_bad_lines_aside(tmp_path):
    lines = log_lines(2000)
    lines[1200] = "{"
    (tmp_path / "day_2.jsonl").write_text("\n".join(lines[1000:]))
    with gzip.open(tmp_path / "day_1.jsonl.gz", "wt") as file:
        file.write("\n".join(lines[:1000]))
    files = (f"{tmp_path}/day_*",)
    data = prepare(PrepareSettings(files=files, out=tmp_path / "DATA", **SETTINGS))
    assert data.rows == {"train": 1799, "test": 200}
    numbers = read_columns(data, "train").continuous
    expected = [i for i in range(1800) if i != 1200]
    assert numbers[:, 1].tolist() == expected
    aside = (data.path / "damaged/lines.tsv").read_text()
    assert aside.startswith(f"{tmp_path}/day_2.jsonl\t201\tno JSON")
    again = {"kind": "table", "files": files, "max_bad_fraction": 0.01}
    like = prepare(PrepareSettings(out=tmp_path / "LIKE", like=data.path, **again))
    assert like.rows["test"] == 1999 and like.vocabulary == data.vocabulary
    extended = prepare(PrepareSettings(out=tmp_path / "MORE", extend=data.path, **again))
    assert extended.cardinalities == data.cardinalities


def test_a_name_with_brackets_is_a_name(tmp_path):
    file = tmp_path / "day[1].csv"
    file.write_text("user\n7\n")
    layout = LogFormat(kind="table", label="y", categorical=("user",))
    assert read_log(file, layout)["user"].tolist() == ["7"]
    assert isinstance(read_log(str(tmp_path / "day*.csv"), layout), pd.DataFrame)
