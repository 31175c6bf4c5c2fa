"""One text for equal values of every type, no guess at others, and shares of unknown values."""

import datetime
import logging
from decimal import Decimal

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cowclip_merlin as cc
from cowclip_merlin.errors import InputError
from cowclip_merlin.workflows import PrepareSettings, prepare
from cowclip_merlin.workflows.prepared import changes
from cowclip_merlin.workflows.raw.log_format import LogFormat
from cowclip_merlin.workflows.raw.readers import read_parquet_rows
from cowclip_merlin.workflows.raw.values.value_text import arrow_of_series, text_of_values

DAY = datetime.date(2001, 1, 31)
NOON = datetime.datetime(2001, 1, 31, 12)


def texts(values):
    return text_of_values(values, where="column 'a'").to_pylist()


WHOLE = st.lists(st.none() | st.integers(-(2**53) + 1, 2**53 - 1), max_size=9)


@given(values=WHOLE)
def test_a_whole_number_has_its_digits_in_every_type(values):
    expected = [None if value is None else str(value) for value in values]
    kinds = (pa.int64(), pa.float64(), pa.decimal128(18, 0), pa.decimal128(20, 2))
    for kind in (*kinds, pa.decimal256(50, 3)):
        decimal = pa.types.is_decimal(kind)
        made = [None if v is None else Decimal(v) for v in values] if decimal else values
        column = pa.array(made, kind)
        assert texts(column) == expected
        assert texts(pa.chunked_array([column[:2], column[2:]])) == expected
        if not decimal:
            assert texts(column.dictionary_encode()) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([2**64 - 1, 0], pa.uint64()), ["18446744073709551615", "0"]),
        (pa.array([-(2**63)], pa.int64()), ["-9223372036854775808"]),
        (pa.array([-0.0, 2.0**24 - 1], pa.float32()), ["0", "16777215"]),
        (pa.array([1e15, 2.0**53 - 1]), ["1000000000000000", "9007199254740991"]),
        (pa.array([True, None, False]), ["true", None, "false"]),
        (pa.array([DAY]), ["2001-01-31"]),
        (pa.array([DAY], pa.date64()), ["2001-01-31"]),
        (pa.array(["47.0", "", " ", None], pa.large_string()), ["47.0", None, " ", None]),
        (pa.array(["x", "", "x"]).dictionary_encode(), ["x", None, "x"]),
        (pa.array([b"x"]), ["x"]),
        (pa.nulls(2), [None, None]),
        (pa.array([], pa.float64()), []),
    ],
    ids=lambda x: str(x.type) if isinstance(x, pa.Array) else "",
)
def test_texts_of_types(values, expected):
    assert texts(values) == expected


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        (pa.array([1, 0.5]), r"has 0\.5 \(double\), .*not unique"),
        (pa.array([float("nan")]), r"has nan \(double\), .*no id"),
        (pa.array([2.0**53]), r"has 9007\d+\.0 \(double\), .*digits"),
        (pa.array([-(2.0**24)], pa.float32()), r"has -16777216\.0 \(float\), .*digits"),
        (pa.array([float("-inf")]), r"has -inf \(double\), .*digits"),
        (pa.array([Decimal("1.50")]), r"has 1\.50 \(decimal128\(3, 2\)\), .*not unique"),
        (pa.array([NOON]), r"is timestamp\[us\], .*not unique"),
        (pa.array([NOON.time()]), r"is time64\[us\], .*not unique"),
        (pa.array([["x"]]), r"is list<item: string>, several values per row; name it in `multi`"),
        (pa.array([b"\xff"]), r"is binary, not text"),
    ],
    ids=lambda x: str(x.type) if isinstance(x, pa.Array) else "",
)
def test_values_without_a_unique_text_are_refused(values, complaint):
    for column in (values, pa.chunked_array([values])):
        with pytest.raises(InputError, match=f"^column 'a' {complaint}"):
            texts(column)


def read(path, table):
    pq.write_table(table, path)
    log_format = LogFormat(kind="table", label="y", categorical=("a",))
    return pa.concat_tables(each.table for each in read_parquet_rows(path, log_format, 7))


def test_sparse_columns_of_pandas_are_read():
    column = pd.Series(pd.arrays.SparseArray([0, 0, 7]))
    assert arrow_of_series(column, "a").to_pylist() == [0, 0, 7]


def test_a_label_may_be_a_category(tmp_path):
    label = pa.array(["no", "Yes", "0"] * 5).dictionary_encode()
    rows = read(tmp_path / "t.parquet", pa.table({"y": label, "a": range(15)}))
    assert rows["y"].to_pylist() == [0, 1, 0] * 5


def test_a_float_that_may_have_lost_digits_is_refused_by_name(tmp_path):
    ids = pa.table({"y": [0, 1], "a": [1.2345e18, 1.2346e18]})
    with pytest.raises(InputError, match=r"t\.parquet: column 'a' has 1\.2345e\+18 \(double\)"):
        read(tmp_path / "t.parquet", ids)


ROWS = 60
IDS = [1234567890123000 + i % 5 for i in range(ROWS)]
YES = [i % 3 == 0 for i in range(ROWS)]
NAMES = ("id", "yes", "word", "two")


def parquet(path, **columns):
    pq.write_table(pa.table({"y": [0, 1] * (ROWS // 2), **columns}), path)
    return path


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A folder with ids of two types."""
    folder = tmp_path_factory.mktemp("base")
    others = {"word": ["u", "v", "w"] * 20, "two": ["True", "false", "true"] * 20}
    others |= {"yes": YES}
    files = [
        parquet(folder / "1.parquet", id=pa.array(IDS), **others),
        parquet(folder / "2.parquet", id=pa.array(IDS, pa.float64()), **others),
    ]
    with pytest.MonkeyPatch.context() as patch:
        warned = []
        log = logging.getLogger(changes.__name__)
        patch.setattr(log, "warning", lambda text, *values: warned.append(text % values))
        settings = PrepareSettings(
            files=files, out=folder / "data", kind="table", label="y", categorical=NAMES
        )
        return prepare(settings), warned


def like(base, file):
    out = file.with_suffix(".data")
    return prepare(PrepareSettings(files=[file], out=out, kind="table", like=base.path))


def test_integers_and_floats_of_one_log_have_the_same_ids(base):
    assert sorted(cc.workflows.value_to_id(base[0], "id")) == sorted(map(str, set(IDS)))


def test_two_texts_of_one_value_are_named_after_the_fit(base):
    text = "warning: column 'two': 'True' and 'true' have two ids; if they are one value, write"
    assert len(base[1]) == 1 and base[1][0].startswith(text)


def test_new_rows_of_the_same_values_are_known(base, tmp_path, caplog, capsys):
    """Whatever their types are."""
    columns = {"id": pa.array(IDS, pa.float64()), "yes": YES, "word": ["u"] * ROWS}
    columns |= {"two": ["True"] * ROWS}
    made = like(base[0], parquet(tmp_path / "new.parquet", **columns))
    shares = ", ".join(f"{name} 0.0%" for name in NAMES)
    assert capsys.readouterr().out.endswith(f"\nunknown values (id 2): {shares}\n")
    assert f"- unknown values (id 2): {shares}\n" in (made.path / "summary.md").read_text()
    assert "unknown" not in (base[0].path / "summary.md").read_text() and not caplog.messages


def test_unknown_values_are_counted_and_their_cause_is_named(base, tmp_path, caplog, capsys):
    words = (("z", "u"), ("z", "False"), ("z", "z"), ("x", "True"))
    rows = [f"0,{IDS[0]}e0,True,{word},{two}" for word, two in words]
    (tmp_path / "new.csv").write_text("\n".join([f"y,{','.join(NAMES)}", *rows, "0,,,,\n"]))
    like(base[0], tmp_path / "new.csv")
    assert capsys.readouterr().out.splitlines()[-1] == (
        "unknown values (id 2): id 100.0%, yes 100.0%, word 100.0%, two 75.0%"
    )
    reasons = {
        "id": f"100% of the values are unknown to {base[0].path}; '{IDS[0]}e0' is '{IDS[0]}' there",
        "yes": f"100% of the values are unknown to {base[0].path}; 'True' is 'true' there; write",
        "word": f"100% of the values are unknown to {base[0].path}; such as 'z', but it has 'u'",
        "two": f"75% of the values are unknown to {base[0].path}; 'False' is 'false' there; write",
    }
    for (name, reason), line in zip(reasons.items(), caplog.messages, strict=True):
        assert line.startswith(f"warning: column '{name}': {reason}")
