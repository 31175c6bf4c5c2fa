"""Raw rows are read as `prepare` reads them, from files and by the workflow of a folder."""

import gzip
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cowclip_merlin import InputError
from cowclip_merlin.cli import main
from cowclip_merlin.workflows import LogFormat, PreparedData, read_log
from cowclip_merlin.workflows.read_log import LogReader

COUNTRIES = ["NA", "null", "", "nan", '"x', 'a "b"', "0123", "1e3", "ü"]
FORMAT = LogFormat(kind="table", label="y", categorical=("user", "country"), continuous=("price",))
ROWS = 60


def columns(rows=ROWS):
    price = [None if i % 7 == 0 else i / 4 for i in range(rows)]
    return {
        "y": [i % 2 for i in range(rows)],
        "user": [i % 9 for i in range(rows)],
        "country": [COUNTRIES[i % len(COUNTRIES)] for i in range(rows)],
        "price": price,
        "request": [f"r{i}" for i in range(rows)],
    }


def text(separator, without=()):
    """The rows as text; in a comma-separated file, quotes are doubled."""
    found = {name: values for name, values in columns().items() if name not in without}
    lines = [separator.join(found)]
    for row in zip(*found.values(), strict=True):
        cells = ["" if cell is None else str(cell) for cell in row]
        if separator == ",":
            cells = ['"' + c.replace('"', '""') + '"' if '"' in c else c for c in cells]
        lines.append(separator.join(cells))
    return ("\n".join(lines) + "\n").encode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The same rows in four formats, and DATA prepared from one of them."""
    path = tmp_path_factory.mktemp("formats")
    (path / "log.csv").write_bytes(text(","))
    (path / "log.tsv").write_bytes(text("\t"))
    (path / "log.txt.gz").write_bytes(gzip.compress(text("\t", without=["y"])))
    pq.write_table(pa.table(columns()), path / "log.parquet")
    command = ["prepare", "table", str(path / "log.csv"), "--out", str(path / "DATA")]
    what = ["--label", "y", "--categorical", "user,country", "--continuous", "price"]
    assert main(command + what) == 0
    return path


@pytest.fixture(scope="module")
def workflow(folder):
    return PreparedData.load(folder / "DATA").workflow().remove_inputs(["y"])


@pytest.mark.parametrize("name", ["log.csv", "log.tsv", "log.txt.gz", "log.parquet"])
def test_every_format_gives_the_values_themselves(folder, name, monkeypatch):
    monkeypatch.setattr(sys.modules[read_log.__module__], "BLOCK_BYTES", 300)  # several pieces
    frame = read_log(folder / name, PreparedData.load(folder / "DATA"))
    assert frame.index.tolist() == list(range(ROWS))
    wanted = columns()
    assert frame["user"].tolist() == [str(user) for user in wanted["user"]]
    assert frame["country"].tolist() == [country or None for country in wanted["country"]]
    np.testing.assert_array_equal(frame["price"], np.array(wanted["price"], float))
    assert "y" not in frame


def test_labels_and_other_columns_are_read_if_asked(folder):
    files = [folder / "log.csv", folder / "log.tsv"]
    frame = read_log(files, FORMAT, labels=True, keep=["request"])
    assert frame["y"].tolist() == 2 * columns()["y"] and frame["y"].dtype == np.int8
    assert frame["request"].tolist() == 2 * columns()["request"]
    assert frame.index.tolist() == list(range(2 * ROWS))


def test_a_damaged_row_is_refused_or_leaves_a_gap(tmp_path):
    (tmp_path / "log.csv").write_text("user,country,price\n1,DE,2\n1,DE,cheap\n2,,\n")
    with pytest.raises(InputError, match=r"log\.csv:3: price is 'cheap'"):
        read_log(tmp_path / "log.csv", FORMAT)
    frame = read_log(tmp_path / "log.csv", FORMAT, max_bad_fraction=0.5)
    assert frame.index.tolist() == [0, 2] and frame["user"].tolist() == ["1", "2"]
    with pytest.raises(InputError, match="no column 'y'"):
        read_log(tmp_path / "log.csv", FORMAT, labels=True)
    with pytest.raises(InputError, match="keep: 'user' is read"):
        read_log(tmp_path / "log.csv", FORMAT, keep=["user"])


def test_criteo_without_labels_has_one_column_less(log, tmp_path):
    lines = log.read_bytes().splitlines()[:50]
    (tmp_path / "all.txt").write_bytes(b"\n".join(lines))
    (tmp_path / "test.txt").write_bytes(b"\n".join(line.partition(b"\t")[2] for line in lines))
    whole = read_log(tmp_path / "all.txt", "criteo")
    assert whole.equals(read_log(tmp_path / "test.txt", "criteo")) and len(whole) == 50
    assert whole["C1"][0] == lines[0].split(b"\t")[14].decode()
    with pytest.raises(InputError, match=r"test\.txt: no column 'label'; .*I1, I2"):
        read_log(tmp_path / "test.txt", "criteo", keep=["label"])
    with pytest.raises(InputError, match=r"unknown format .*'ratings'; .* criteo"):
        read_log(tmp_path / "test.txt", "ratings")


@pytest.mark.parametrize(
    "kind", ["int64", "uint8", "float64", "float32", "Int64", "Float64", "category", "object",
             "str", "string", "string[pyarrow]"],
)  # fmt: skip
def test_whole_numbers_of_any_type_are_their_digits(folder, workflow, kind):
    frame = read_log(folder / "log.csv", FORMAT)
    wanted = workflow.transform(frame)
    assert wanted["user"].min() > 2
    given = frame.assign(user=pd.Series(columns()["user"]).astype(kind))
    assert workflow.transform(given).equals(wanted)


def test_missing_values_of_any_type_are_missing(folder, workflow):
    frame = read_log(folder / "log.csv", FORMAT)
    numbers = pd.Series(columns()["user"])
    for users in (numbers.where(numbers > 3), numbers.astype("Int64").where(numbers > 3)):
        ids = workflow.transform(frame.assign(user=users))["user"]
        assert ((ids == 1) == (numbers <= 3)).all() and (ids != 2).all()
    for users in ("", pd.Categorical([""] * ROWS), None, pd.array([None] * ROWS, "string")):
        assert (workflow.transform(frame.assign(user=users))["user"] == 1).all()


@pytest.mark.parametrize(
    ("users", "reason"),
    [
        (0.5, r"has 0.5 \(double\)"),
        (2.0**53, r"has 9007199254740992.0 \(double\)"),
        (float("inf"), r"has inf \(double\)"),
        (pd.Timestamp("2020-01-01"), r"is timestamp\[ns\]"),
        (pd.Categorical([1.5] * ROWS), r"has 1.5 \(double\)"),
        ([7] * 30 + ["7"] * 30, "is object with"),
        ([[7]] * ROWS, "is list<item: int64>"),
    ],
)
def test_a_value_without_a_unique_text_is_refused(folder, workflow, users, reason):
    frame = read_log(folder / "log.csv", FORMAT).assign(user=users)
    with pytest.raises(InputError, match=f"^column 'user' {reason}.*; "):
        workflow.transform(frame)


FRAMES = {
    "pandas": pd.DataFrame,
    "arrow": pa.table,
    "dictionaries": lambda given: [dict(zip(given, row)) for row in zip(*given.values())],
}


@pytest.mark.parametrize("kind", FRAMES)
def test_a_frame_is_read_in_parts(monkeypatch, kind):
    """As large as memory allows: only one part at a time is there a second time."""
    given = {**columns(), "price": [None] * 30 + [1.5] * 30}
    monkeypatch.setattr(sys.modules[LogReader.__module__], "_FRAME_ROWS", 7)
    pieces = list(LogReader(FORMAT).frame(FRAMES[kind](given)))
    assert [rows.table.num_rows for rows in pieces] == [7] * 8 + [4]
    whole = pa.concat_tables([rows.table for rows in pieces]).to_pydict()
    assert whole["price"] == given["price"] and whole["y"] == given["y"]
    assert [str(x) for x in whole["user"]] == [str(x) for x in given["user"]]
    assert np.concatenate([rows.positions for rows in pieces]).tolist() == [*range(ROWS)]
    del given["user"]
    for lacking in (given, {name: values[:0] for name, values in given.items()}):
        with pytest.raises(InputError, match=r"no column '(user|y)'"):
            list(LogReader(FORMAT).frame(FRAMES[kind](lacking)))
