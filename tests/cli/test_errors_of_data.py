"""Mistakes in raw logs and in what is asked of `generate` and `prepare`."""

import gzip
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest


def negatives(lines):
    return [b"0" + line[1:] for line in lines]


def csv(*rows):
    return "\n".join(["y,a,b", *rows]).encode() + b"\n"


def like(p, like, out, *more):
    log = p.write("x.txt", b"\n".join(p.lines()))
    words = [str(log), "--like", str(like), "--out", str(out)]
    return ["prepare", "criteo", *words, *more]


def like_in_the_folder_to_replace(p):
    outer = p.data()
    shutil.copytree(outer, outer / "inner")
    return like(p, outer / "inner", outer, "--overwrite")


def like_behind_a_link(p):
    data = p.data()
    (p.path / "link").symlink_to(data)
    return like(p, p.path / "link", data, "--overwrite")


def without(data, field):
    (data / "categories" / f"unique.{field}.parquet").unlink()
    return data


def parquet_with_two(p, name):
    columns = [[0, 1] * 50, range(100), range(100), range(100)]
    pq.write_table(pa.table(columns, names=["y", "a", "b", name]), p.path / "t.parquet")
    return p.path / "t.parquet"


TABLE_OPTIONS = ("--label", "y", "--categorical", "a,b")
GOOD_TABLE = csv(*[f"{i % 2},{i % 5},{i % 3}" for i in range(100)])

# name -> (command, what the line must hold)
CASES = {
    "raw file missing": (lambda p: p.prepare("criteo", p.path / "no.txt"), r"no\.txt"),
    "raw file empty": (lambda p: p.prepare("criteo", p.write("e.txt")), r"e\.txt.*empty"),
    "wrong columns": (
        lambda p: p.prepare("criteo", p.write("w.txt", b"1\t2\t3\n" * 50)),
        r"w\.txt.*40",
    ),
    "wrong header": (
        lambda p: p.prepare("avazu", p.write("w.csv", b"id,click\n1,0\n")),
        r"w\.csv.*hour",
    ),
    "no positive labels": (
        lambda p: p.prepare("criteo", p.write("n.txt", b"\n".join(negatives(p.lines())) + b"\n")),
        r"positive|label 1",
    ),
    "too many bad lines": (
        lambda p: p.prepare("criteo", p.write("b.txt", b"\n".join([*p.lines(50), b"x"] * 2))),
        r"b\.txt.*51|bad",
    ),
    "damaged gzip": (
        lambda p: p.prepare(
            "criteo", p.write("d.txt.gz", gzip.compress(b"\n".join(p.lines()))[:-200])
        ),
        r"d\.txt\.gz",
    ),
    "unknown column of a table": (
        lambda p: p.prepare(
            "table", p.write("t.csv", GOOD_TABLE), "--label", "y", "--categorical", "a,zz"
        ),
        r"zz",
    ),
    "table without a label": (
        lambda p: p.prepare("table", p.write("t.csv", GOOD_TABLE), "--categorical", "a,b"),
        r"--label",
    ),
    "test fraction of 1": (
        lambda p: p.prepare(
            "table", p.write("t.csv", GOOD_TABLE), *TABLE_OPTIONS, "--test-fraction", "1"
        ),
        r"test.fraction",
    ),
    "label that is neither 0 nor 1": (
        lambda p: p.prepare(
            "table", p.write("t.csv", csv("0,1,1", "1,1,1", "7,1,1")), *TABLE_OPTIONS
        ),
        r"t\.csv:4: y is '7'",
    ),
    "header that is not UTF-8": (
        lambda p: p.prepare(
            "table", p.write("t.csv", GOOD_TABLE.decode().encode("utf-16")), *TABLE_OPTIONS
        ),
        r"t\.csv: .*not UTF-8",
    ),
    "other separator": (
        lambda p: p.prepare(
            "table", p.write("t.csv", GOOD_TABLE.replace(b",", b";")), *TABLE_OPTIONS
        ),
        r"t\.csv: no column 'y' .*\('y;a;b'\).* --separator ';'",
    ),
    "space in a name": (
        lambda p: p.prepare(
            "table", p.write("t.csv", GOOD_TABLE.replace(b"a", b" a", 1)), *TABLE_OPTIONS
        ),
        r"no column 'a' .*\('y', ' a', 'b'\)",
    ),
    "binary header": (
        lambda p: p.prepare(
            "table", p.write("t.csv", b"\0" * 5000 + b"\n" + GOOD_TABLE), *TABLE_OPTIONS
        ),
        r"no column 'y' .*\('[x0\\]{1,160}'\).* --separator",
    ),
    "name that occurs twice": (
        lambda p: p.prepare(
            "table",
            p.write("t.csv", GOOD_TABLE.replace(b"b", b"a", 1)),
            "--label",
            "y",
            "--categorical",
            "a",
        ),
        r"t\.csv: column 'a' occurs twice",
    ),
    "name that occurs twice in parquet": (
        lambda p: p.prepare("table", parquet_with_two(p, "a"), *TABLE_OPTIONS),
        r"t\.parquet: column 'a' occurs twice",
    ),
    "slash in a name": (
        lambda p: p.prepare(
            "table",
            p.write("t.csv", GOOD_TABLE.replace(b"a", b"../a", 1)),
            "--label",
            "y",
            "--categorical",
            "../a,b",
        ),
        r"column '\.\./a'.*rename",
    ),
    "folder as a file": (lambda p: p.prepare("table", p.path, *TABLE_OPTIONS), r"is a folder"),
    "prepared folder exists": (
        lambda p: [
            "prepare",
            "criteo",
            str(p.write("x.txt", b"\n".join(p.lines()))),
            "--out",
            str(p.data()),
        ],
        r"data.*--overwrite",
    ),
    "folder to replace is of something else": (
        lambda p: [
            *p.prepare("table", p.write("t.csv", GOOD_TABLE), *TABLE_OPTIONS, "--overwrite"),
            *("--out", str(p.write("mine/thesis.txt", b"years of work").parent)),
        ],
        r"mine: has no dataset\.json",
    ),
    "results to replace, beside the description of their data": (
        lambda p: [
            *p.prepare("table", p.write("t.csv", GOOD_TABLE), *TABLE_OPTIONS, "--overwrite"),
            *("--out", str(p.inside(p.data(), "results.csv", b"hours of work").parent)),
        ],
        r"data: holds results of experiments",
    ),
    "a run in the folder to replace": (
        lambda p: [
            *p.prepare("table", p.write("t.csv", GOOD_TABLE), *TABLE_OPTIONS, "--overwrite"),
            *("--out", str(p.inside(p.data(), "run/config.json", b"{}").parents[1])),
        ],
        r"data: holds a run in .*data/run, which --overwrite would delete",
    ),
    "file to replace": (
        lambda p: [
            *p.prepare("table", p.write("t.csv", GOOD_TABLE), *TABLE_OPTIONS, "--overwrite"),
            *("--out", str(p.write("thesis.txt", b"years of work"))),
        ],
        r"thesis\.txt: has no dataset\.json",
    ),
    "log in the folder to replace": (
        lambda p: [
            *p.prepare("table", p.inside(p.data(), "t.csv", GOOD_TABLE), *TABLE_OPTIONS),
            *("--overwrite", "--out", str(p.path / "data")),
        ],
        r"data/t\.csv: is inside .*data",
    ),
    "like the folder to replace": (
        lambda p: like(p, p.data(), p.path / "data", "--overwrite"),
        r"data: shares files with --like .*data",
    ),
    "like a link to the folder to replace": (like_behind_a_link, r"data: shares files with --like"),
    "like a folder in the folder to replace": (
        like_in_the_folder_to_replace,
        r"data: shares files with --like .*inner",
    ),
    "a folder in that of like": (
        lambda p: like(p, p.data(), p.path / "data" / "new"),
        r"new: shares files with --like",
    ),
    "seed of a split by time": (
        lambda p: p.prepare("criteo", p.write("x.txt"), "--split", "time", "--seed", "1234"),
        r"--seed has no effect.* --split time",
    ),
    "seed beside like": (
        lambda p: like(p, p.data(), p.path / "new", "--seed", "7"),
        r"--like .*data: .* omit .*--seed",
    ),
    "partitions of nearly nothing": (
        lambda p: p.prepare(
            "table", p.write("t.csv", GOOD_TABLE), *TABLE_OPTIONS, "--partition-mb", "1e-7"
        ),
        r"--partition-mb is 1e-07;",
    ),
    "partitions without end": (
        lambda p: p.prepare(
            "table", p.write("t.csv", GOOD_TABLE), *TABLE_OPTIONS, "--partition-mb", "inf"
        ),
        r"--partition-mb is inf;",
    ),
    "like a folder of other columns": (
        lambda p: p.prepare(
            "criteo",
            p.write("x.txt", b"\n".join(p.lines())),
            "--like",
            p.data(),
            "--continuous",
            "I1,I2",
        ),
        r"--continuous: .*data has other columns",
    ),
    "like a folder of another kind": (
        lambda p: p.prepare(
            "table", p.write("t.csv", GOOD_TABLE), *TABLE_OPTIONS, "--like", p.data()
        ),
        r"criteo.*table",
    ),
    "like a folder without all of its vocabulary": (
        lambda p: p.prepare(
            "criteo", p.write("x.txt", b"\n".join(p.lines())), "--like", without(p.data(), "C5")
        ),
        r"data/categories/unique\.C5\.parquet: no such file",
    ),
    "GPU asked for to prepare": (
        lambda p: p.prepare(
            "table", p.write("t.csv", GOOD_TABLE), *TABLE_OPTIONS, "--device", "gpu"
        ),
        r"GPU|gpu",
    ),
    "generate no rows": (
        lambda p: ["generate", "--rows", "0", "--out", str(p.path / "out")],
        r"rows",
    ),
    "generate into a missing folder": (
        lambda p: ["generate", "--rows", "9", "--out", str(p.path / "no" / "out")],
        r"no",
    ),
    "generate crossed columns in a log that drifts": (
        lambda p: ["generate", "--rows", "9", "--crossed", "--drift", "--out", str(p.path / "out")],
        r"--crossed: .*--drift",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_one_line_and_exit_code_2(case, refused):
    refused(*CASES[case])


def test_no_such_scheduler(refused, monkeypatch):
    import distributed

    connect = distributed.Client
    monkeypatch.setattr(
        distributed, "Client", lambda at, timeout, **more: connect(at, timeout="1s", **more)
    )
    refused(
        lambda p: p.prepare(
            "table", p.write("t.csv", GOOD_TABLE), *TABLE_OPTIONS, "--scheduler", "127.0.0.1:1"
        ),
        r"127\.0\.0\.1:1: no Dask scheduler answers",
    )
