"""Every mistake ends in one clear line on standard error and exit code 2, nothing left behind."""

import gzip
import json
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cowclip_merlin.cli import main


class Place:
    """A scratch folder with the prepared data, a finished run, and ways to spoil them."""

    def __init__(self, folder, data, run, log):
        self.path, self._data, self._run, self._log = folder, data, run, log

    def write(self, name, content=b""):
        path = self.path / name
        path.write_bytes(content)
        return path

    def lines(self, n=400):
        return self._log.read_bytes().splitlines()[:n]

    def data(self):
        return shutil.copytree(self._data, self.path / "data")

    def run(self):
        return shutil.copytree(self._run, self.path / "run")

    def column(self, name, index, value, split="train"):
        """A copy of the data with one value of one column replaced."""
        data = self.data()
        file = sorted((data / split).glob("*.parquet"))[0]
        table = pq.read_table(file)
        values = table[name].to_numpy().copy()
        values[index] = value
        at = table.column_names.index(name)
        pq.write_table(table.set_column(at, name, pa.array(values)), file)
        return data

    def edited_json(self, file, **changes):
        value = json.loads(file.read_text())
        file.write_text(json.dumps(value | changes))

    def prepare(self, *more):
        return ["prepare", *map(str, more), "--out", str(self.path / "out")]

    def train(self, data, *more, model="deepfm", batch="256", out="out"):
        return [
            "train", str(data), "--out", str(self.path / out), "--model", model,
            "--batch-size", batch, "--mlp", "8", "--epochs", "1", *map(str, more),
        ]  # fmt: skip

    def evaluate(self, run, data, *more):
        return ["evaluate", str(run), str(data), *map(str, more)]


def missing_checkpoint(p):
    run = p.run()
    shutil.rmtree(run / "checkpoints")
    return p.evaluate(run, p.data())


def damaged_checkpoint(p):
    run = p.run()
    for file in (run / "checkpoints").glob("*.data-*"):
        file.write_bytes(file.read_bytes()[:100])
    return p.evaluate(run, p.data())


def other_model(p):
    run = p.run()
    config = json.loads((run / "config.json").read_text())
    p.edited_json(run / "config.json", settings=config["settings"] | {"model": "dcnv2"})
    return p.evaluate(run, p.data())


def no_parquet(p):
    data = p.data()
    shutil.rmtree(data / "train")
    return p.train(data)


def missing_column(p):
    data = p.data()
    for file in (data / "train").glob("*.parquet"):
        pq.write_table(pq.read_table(file).drop_columns(["C7"]), file)
    return p.train(data)


def other_version_of_data(p):
    data = p.data()
    p.edited_json(data / "dataset.json", format_version=99)
    return p.train(data)


def other_version_of_run(p):
    run = p.run()
    p.edited_json(run / "config.json", format_version=99)
    return p.evaluate(run, p.data())


def damaged_description(p):
    data = p.data()
    (data / "dataset.json").write_text("{")
    return p.train(data)


def negatives(lines):
    return [b"0" + line[1:] for line in lines]


def csv(*rows):
    return "\n".join(["y,a,b", *rows]).encode() + b"\n"


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
        r"label|t\.csv",
    ),
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
    "like a folder of another kind": (
        lambda p: p.prepare(
            "table", p.write("t.csv", GOOD_TABLE), *TABLE_OPTIONS, "--like", p.data()
        ),
        r"criteo.*table",
    ),
    "no such scheduler": (
        lambda p: p.prepare(
            "table", p.write("t.csv", GOOD_TABLE), *TABLE_OPTIONS, "--scheduler", "127.0.0.1:1"
        ),
        r"127\.0\.0\.1:1",
    ),
    "GPU asked for to prepare": (
        lambda p: p.prepare(
            "table", p.write("t.csv", GOOD_TABLE), *TABLE_OPTIONS, "--device", "gpu"
        ),
        r"GPU|gpu",
    ),
    "no prepared folder": (lambda p: p.train(p.path / "nothing"), r"nothing"),
    "folder that was not prepared": (lambda p: p.train(p.path), r"dataset\.json|prepare"),
    "batch larger than the data": (lambda p: p.train(p.data(), batch="100000"), r"100000.*rows"),
    "batch of 0": (lambda p: p.train(p.data(), batch="0"), r"batch_size is 0"),
    "batch that is no number": (lambda p: p.train(p.data(), batch="64K"), r"64K"),
    "unknown model": (lambda p: p.train(p.data(), model="deepfn"), r"'deepfn'.*deepfm"),
    "unknown rule": (lambda p: p.train(p.data(), "--rule", "cow"), r"'cow'.*cowclip"),
    "unknown clip": (lambda p: p.train(p.data(), "--clip", "cow"), r"'cow'.*cowclip"),
    "unknown preset": (lambda p: p.train(p.data(), "--preset", "kaggle"), r"'kaggle'.*criteo"),
    "exact update": (
        lambda p: p.train(p.data(), "--update", "exact", "--clip", "field"),
        r"exact.*clips cowclip and none.*dense",
    ),
    "unknown optimizer": (
        lambda p: p.train(p.data(), "--optimizer", "lamb"),
        r"'lamb'.*adam, adagrad",
    ),
    "exact update of Adagrad with L2": (
        lambda p: p.train(p.data(), "--update", "exact", "--optimizer", "adagrad"),
        r'not with Adagrad and l2 2\.5e-06; use l2=0 or update="dense"',
    ),
    "accumulator of Adam": (
        lambda p: p.train(p.data(), "--initial-accumulator", "0"),
        r"initial_accumulator is Adagrad's.*'adam'",
    ),
    "exact update under Clippy": (
        lambda p: p.train(p.data(), "--update", "exact", "--clip", "clippy"),
        r"exact.*'clippy'.*dense",
    ),
    "validation fraction of 1": (
        lambda p: p.train(p.data(), "--validation-fraction", "1"),
        r"validation_fraction is 1;",
    ),
    "validation fraction of no row": (
        lambda p: p.train(p.data(), "--validation-fraction", "1e-5"),
        r"validation_fraction 1e-05 of \d+ train rows are 0.*another fraction",
    ),
    "batch larger than what validation leaves": (
        lambda p: p.train(p.data(), "--validation-fraction", "0.95"),
        r"256 is larger than the 1\d\d training rows",
    ),
    "negative l2": (lambda p: p.train(p.data(), "--l2", "-1"), r"l2 is -1"),
    "rate that is not finite": (lambda p: p.train(p.data(), "--dense-lr", "nan"), r"dense_lr"),
    "mlp that is no list": (lambda p: p.train(p.data(), "--mlp", "40x"), r"40x"),
    "no epochs": (lambda p: p.train(p.data(), "--epochs", "0"), r"epochs is 0"),
    "diverging rates": (
        lambda p: p.train(p.data(), "--dense-lr", "1e30", "--rule", "none"),
        r"diverged.*learning rates",
    ),
    "id outside the vocabulary": (
        lambda p: p.train(p.column("C6", 3, 1 << 30)),
        r"train.*'C6'.*1073741824",
    ),
    "negative id": (lambda p: p.train(p.column("C6", 3, -1)), r"'C6'.*-1"),
    "NaN in a continuous column": (
        lambda p: p.train(p.column("I4", 0, np.nan, "test")),
        r"test.*'I4'.*nan",
    ),
    "label 2 in prepared data": (lambda p: p.train(p.column("label", 0, 2)), r"'label'.*2"),
    "parquet files gone": (no_parquet, r"train"),
    "column gone": (missing_column, r"'C7'"),
    "data of another version": (other_version_of_data, r"99"),
    "run of another version": (other_version_of_run, r"99"),
    "damaged dataset.json": (damaged_description, r"dataset\.json"),
    "GPU asked for to train": (lambda p: p.train(p.data(), "--device", "gpu"), r"no GPU"),
    "run folder in use": (lambda p: p.train(p.data(), out=p.run().name), r"run.*--resume"),
    "resume of nothing": (lambda p: p.train(p.data(), "--resume"), r"config\.json"),
    "resume with another rate": (
        lambda p: p.train(p.data(), "--resume", "--l2", "1e-3", out=p.run().name),
        r"overrides.*same settings",
    ),
    "resume with another model": (
        lambda p: p.train(p.data(), "--resume", model="dcn", out=p.run().name),
        r"model deepfm, not dcn",
    ),
    "checkpoint of another model": (other_model, r"checkpoint of another model"),
    "checkpoint damaged": (damaged_checkpoint, r"checkpoint"),
    "checkpoint gone": (missing_checkpoint, r"no checkpoint"),
    "evaluation of no run": (lambda p: p.evaluate(p.path, p.data()), r"config\.json"),
    "predictions into a missing folder": (
        lambda p: p.evaluate(p.run(), p.data(), "--predictions", p.path / "no" / "f.parquet"),
        r"f\.parquet|no",
    ),
    "generate no rows": (
        lambda p: ["generate", "--rows", "0", "--out", str(p.path / "out")],
        r"rows",
    ),
    "generate into a missing folder": (
        lambda p: ["generate", "--rows", "9", "--out", str(p.path / "no" / "out")],
        r"no",
    ),
    "scale to a negative batch": (lambda p: ["scale", "--to", "-5"], r"-5"),
    "unknown command": (lambda p: ["trian"], r"trian"),
}


@pytest.fixture(scope="session")
def trained(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    code = main(
        ["train", str(data), "--out", str(folder), "--model", "deepfm", "--batch-size", "256",
         "--mlp", "8", "--epochs", "1"]
    )  # fmt: skip
    assert code == 0
    return folder


@pytest.fixture
def place(tmp_path, data, trained, log):
    return Place(tmp_path, data, trained, log)


@pytest.mark.parametrize("case", CASES)
def test_one_line_and_exit_code_2(case, place, capsys):
    make, pattern = CASES[case]
    command = make(place)
    before = {path for path in place.path.rglob("*")}
    try:
        code = main(list(command))
    except SystemExit as end:  # what argparse itself finds
        code = end.code
    errors = capsys.readouterr().err
    lines = [line for line in errors.splitlines() if "error:" in line]
    assert code == 2, (lines, errors[-2000:])
    assert len(lines) == 1 and lines[0].startswith("cowclip"), lines
    assert re.search(pattern, lines[0]), lines[0]
    new = {path for path in place.path.rglob("*")} - before
    assert not new, f"left behind: {sorted(map(str, new))}"
