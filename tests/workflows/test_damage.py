"""Damaged, odd and interrupted input: rows are set aside by name, nothing half-written stays."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cowclip_merlin as cc
from cowclip_merlin.errors import InputError
from cowclip_merlin.workflows import PreparedData, PrepareSettings, Recipe, prepare
from cowclip_merlin.workflows.ingest import Split, is_test
from cowclip_merlin.workflows.raw.text_lines import count_lines, read_blocks


def read(data, split):
    files = data.files(split)
    return pd.concat([pq.read_table(f).to_pandas() for f in files], ignore_index=True)


def make(file, out, **settings):
    return prepare(PrepareSettings(files=(file,), out=out, **settings))


def test_damaged_lines_are_set_aside(prepared, tmp_path, capsys):
    good = [f"{i % 2},{i % 7},{i % 3},{i / 4}".encode() for i in range(3000)]
    damage = {
        5: (b"1,2,3", "3 columns instead of 4"),
        700: (b"2,1,1,1", "y is '2'"),
        701: (b",1,1,1", "y is ''"),
        1500: (b"1,\xff\xfe,1,1", "not UTF-8"),
        2500: (b"1,1,1,many", "x is 'many'"),
        2501: (b"1,1,1,nan", "x is 'nan'"),
        2900: (b"", "a blank line"),
    }
    lines = [damage[i][0] if i in damage else line for i, line in enumerate(good)]
    data = prepared(b"y,a,b,x\n" + b"\n".join(lines) + b"\n", max_bad_fraction=0.01)
    assert sum(data.rows.values()) == 3000 - len(damage)
    assert data.description["damaged"] == len(damage)
    kept = (data.path / "damaged" / "lines.tsv").read_bytes().splitlines()
    assert len(kept) == len(damage)
    out = capsys.readouterr().out
    for line, (number, (text, reason)) in zip(kept, damage.items(), strict=True):
        _, at, why, rest = line.split(b"\t", 3)
        assert (int(at), rest) == (number + 2, text)
        assert reason in why.decode() and f"t.csv:{number + 2}: " in out
    expected = [int(g[:1]) for i, g in enumerate(good) if i not in damage]
    position = np.array([i for i in range(3000) if i not in damage], np.uint64)
    test = is_test(position, Split(test_fraction=0.1))
    assert read(data, "test").y.tolist() == np.array(expected)[test].tolist()


@given(
    lines=st.lists(st.sampled_from([b"1,2", b"", b"0,x\r", b"\r"]), min_size=1, max_size=12),
    ended=st.booleans(),
    size=st.integers(1, 9),
)
def test_blank_lines_at_the_end_are_no_lines(tmp_path_factory, lines, ended, size):
    file = tmp_path_factory.getbasetemp() / "blank.csv"
    file.write_bytes(b"\n".join(lines) + b"\n" * ended)
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        with pytest.raises(InputError, match="the file is empty"):
            list(read_blocks(file, size))
        return
    found = list(read_blocks(file, size))
    text = b"".join(block.text for block in found)
    assert text == b"\n".join(lines) + b"\n"
    assert count_lines(file, size) == len(lines)
    at = 1
    for block in found:
        assert block.first_line == at and block.text.endswith(b"\n")
        at += block.text.count(b"\n")


def test_damage_never_moves_other_rows_between_the_splits(log, data, tmp_path):
    lines = log.read_bytes().splitlines(keepends=True)
    lines[77] = b"broken\n"
    other = tmp_path / "log.txt"
    other.write_bytes(b"".join(lines))
    spoiled = make(other, tmp_path / "data", max_bad_fraction=0.01)
    whole = PreparedData.load(data)
    assert sum(spoiled.rows.values()) == sum(whole.rows.values()) - 1
    assert min(whole.rows[s] - spoiled.rows[s] for s in ("train", "test")) == 0


def test_damaged_rows_of_parquet_are_named(tmp_path, capsys):
    frame = pd.DataFrame({"y": np.arange(3000) % 2, "a": "u", "x": np.linspace(0, 1, 3000)})
    frame.loc[7, "y"] = 2
    frame.loc[9, "x"] = np.inf
    frame.to_parquet(tmp_path / "t.parquet")
    data = make(
        tmp_path / "t.parquet", tmp_path / "data", kind="table", label="y", categorical=("a",),
        continuous=("x",), max_bad_fraction=0.01,
    )  # fmt: skip
    assert data.description["damaged"] == 2
    out = capsys.readouterr().out
    assert "t.parquet:8: y is 2, " in out
    assert "t.parquet:10: x is inf, " in out


@pytest.fixture
def table(tmp_path_factory):
    """What `make` takes for a small table: its file, and settings."""
    file = tmp_path_factory.mktemp("table") / "t.csv"
    file.write_text("y,a,x\n" + "".join(f"{i % 2},u{i % 3},{i}\n" for i in range(100)))
    return file, {"kind": "table", "label": "y", "categorical": ("a",), "continuous": ("x",)}


def test_a_failure_leaves_the_old_folder_in_place(table, tmp_path):
    file, settings = table
    out = tmp_path / "data"
    make(file, out, **settings)
    before = sorted(f.name for f in out.rglob("*"))
    broken = tmp_path / "broken.csv"
    broken.write_bytes(b"y,a,x\n" + b"x\n" * 100)
    with pytest.raises(InputError):
        make(broken, out, overwrite=True, **settings)
    assert sorted(f.name for f in out.rglob("*")) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["broken.csv", "data"]


@pytest.mark.one_case
@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), KeyboardInterrupt()])
@pytest.mark.parametrize("when", ["the new one is moved", "the old one was moved"])
def test_a_folder_that_cannot_be_put_in_place_leaves_the_old_one(
    table, tmp_path, monkeypatch, error, when
):
    (file, settings), out, rename = table, tmp_path / "data", Path.rename
    make(file, out, **settings)
    before = (out / "dataset.json").read_bytes()

    def fails(self, target):
        if when == "the new one is moved" and target == out and self.name == "data":
            raise error
        moved = rename(self, target)
        if when == "the old one was moved" and self == out:
            raise error
        return moved

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(type(error)):
        make(file, out, overwrite=True, recipe=Recipe(log=True), **settings)
    assert (out / "dataset.json").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["data"]


def test_a_link_to_a_folder_stays_one(table, tmp_path):
    file, settings = table
    make(file, tmp_path / "data", **settings)
    (tmp_path / "link").symlink_to("data")
    recipe = Recipe(log=True)
    again = make(file, tmp_path / "link", overwrite=True, recipe=recipe, **settings)
    assert again.recipe.log and (tmp_path / "link").is_symlink()
    assert PreparedData.load(tmp_path / "data").fingerprint == again.fingerprint
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "link"]


@pytest.mark.parametrize("label", [["0", "1"], ["0.0", "1.0"], [False, True], [0, 1]])
def test_labels_of_parquet_are_counted_whatever_their_type(tmp_path, label):
    n = np.arange(300)
    frame = pd.DataFrame({"y": [label[i % 3 == 0] for i in n], "a": n % 5, "x": n / 300})
    frame.to_parquet(tmp_path / "t.parquet")
    table = {"kind": "table", "label": "y", "categorical": ("a",), "continuous": ("x",)}
    assert make(tmp_path / "t.parquet", tmp_path / "data", **table).clicks == 100


def test_integers_beyond_the_exact_floats(log, tmp_path):
    """2**53 + 1 is a whole number, though float64 rounds it."""
    lines = log.read_bytes().splitlines(keepends=True)
    cells = lines[3].split(b"\t")
    cells[2] = b"9007199254740993"
    lines[3] = b"\t".join(cells)
    other = tmp_path / "log.txt"
    other.write_bytes(b"".join(lines))
    data = make(other, tmp_path / "data")
    assert data.description["damaged"] == 0
    assert data.statistics.maximum["I2"] == 2.0**53
    frame = pd.DataFrame({"y": [0, 1] * 50, "a": "u", "x": [2**53 + 1, 3] * 50})
    frame.to_parquet(tmp_path / "t.parquet")
    table = {"kind": "table", "label": "y", "categorical": ("a",), "continuous": ("x",)}
    made = make(tmp_path / "t.parquet", tmp_path / "table", **table)
    assert made.statistics.maximum["x"] == 2.0**53


def test_windows_line_ends(prepared):
    text = "y,a,b,x\r\n" + "".join(f"{i % 2},{i % 3},z,{i}\r\n" for i in range(100))
    data = prepared(text)
    assert data.description["damaged"] == 0
    assert cc.workflows.value_to_id(data, "b") == {"z": 3}


def test_quoted_commas(prepared):
    text = "y,a,b,x\n" + "".join(f'{i % 2},"u, v",{i % 3},{i}\n' for i in range(100))
    assert cc.workflows.value_to_id(prepared(text), "a") == {"u, v": 3}


def test_parquet_of_pandas_needs_no_conversion(tmp_path):
    n = np.arange(400)
    frame = pd.DataFrame({"y": n % 2 == 0, "a": n % 5, "x": np.where(n % 3, n / 400, np.nan)})
    frame["a"] = frame.a.where(n % 7 > 0).astype("Int64")
    frame.to_parquet(tmp_path / "t.parquet")
    data = make(
        tmp_path / "t.parquet", tmp_path / "data", kind="table", label="y", categorical=("a",),
        continuous=("x",),
    )  # fmt: skip
    assert data.description["damaged"] == 0 and data.clicks == 200
    assert sorted(cc.workflows.value_to_id(data, "a")) == ["0", "1", "2", "3", "4"]


def test_a_comma_in_a_name_of_a_column(prepared):
    text = 'y,"a, b",b,x\n' + "".join(f"{i % 2},u,{i % 3},{i}\n" for i in range(100))
    data = prepared(text, categorical=("a, b",))
    assert cc.workflows.value_to_id(data, "a, b") == {"u": 3}


@pytest.mark.one_case
@pytest.mark.system
@pytest.mark.parametrize(("name", "code_after"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_an_interrupted_prepare_leaves_nothing(log, tmp_path, name, code_after):
    code = (
        "import sys, os, signal\n"
        # Where the suite runs in the background, its children ignore the signal.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from cowclip_merlin.workflows import ingest\n"
        "ingest.Ingest._check_end = lambda *a: os.kill(os.getpid(), signal."
        f"{name})\n"
        "from cowclip_merlin.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    out = tmp_path / "data"
    done = subprocess.run(
        [sys.executable, "-c", code, "prepare", "criteo", str(log), "--out", str(out)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == code_after, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_field_without_a_value_in_some_partitions(tmp_path):
    rows = [f"{i % 2},u{i % 3},{'v' if i < 100 else ''},{i}\n" for i in range(9000)]
    text = "y,a,b,x\n" + "".join(rows)
    file = tmp_path / "t.csv"
    file.write_text(text)
    table = {"kind": "table", "label": "y", "categorical": ("a", "b"), "continuous": ("x",)}
    data = make(file, tmp_path / "data", partition_mb=0.02, **table)
    assert len(data.files("train")) > 2
    both = pd.concat([read(data, "train"), read(data, "test")])
    assert (both.b == 3).sum() == 100 and (both.b == 1).sum() == 8900
    one = tmp_path / "one.csv"
    one.write_text("y,a,b,x\n0,,,\n")
    scored = make(one, tmp_path / "one", like=data.path, **table)
    assert read(scored, "test")[["a", "b"]].to_numpy().tolist() == [[1, 1]]


def test_a_field_that_is_always_empty(tmp_path):
    text = "y,a,b,x\n" + "".join(f"{i % 2},u{i % 3},,{i}\n" for i in range(200))
    file = tmp_path / "t.csv"
    file.write_text(text)
    table = {"kind": "table", "label": "y", "categorical": ("a", "b"), "continuous": ("x",)}
    data = make(file, tmp_path / "data", **table)
    assert set(read(data, "train").b) == {1}
    assert cc.workflows.value_to_id(data, "b") == {}


def test_an_integer_is_a_decimal_number(log, tmp_path):
    lines = log.read_bytes().splitlines(keepends=True)
    numbers = ("1.5", "0x1f", "0X1F", "-0x1", "1.0", "1e3", "++1")
    for i, number in enumerate(numbers):
        cells = lines[3 + i].split(b"\t")
        cells[2] = number.encode()
        lines[3 + i] = b"\t".join(cells)
    other = tmp_path / "log.txt"
    other.write_bytes(b"".join(lines))
    data = make(other, tmp_path / "data", max_bad_fraction=0.01)
    told = (data.path / "damaged" / "lines.tsv").read_text().splitlines()
    assert len(told) == len(numbers)
    for line, number in zip(told, numbers):
        assert f"I2 is {number!r}, " in line


def test_damaged_parquet_is_named(tmp_path):
    file = tmp_path / "t.parquet"
    frame = pd.DataFrame({"y": np.arange(50_000) % 2, "a": np.arange(50_000).astype(str)})
    frame.to_parquet(file)
    whole = bytearray(file.read_bytes())
    whole[5000:90_000] = bytes(85_000)
    file.write_bytes(bytes(whole))
    with pytest.raises(InputError, match=r"t\.parquet: damaged parquet"):
        make(file, tmp_path / "data", kind="table", label="y", categorical=("a",))
    assert [p.name for p in tmp_path.iterdir()] == ["t.parquet"]
