"""A workspace to make mistakes in, and a check of what every mistake ends in."""

import json
import re
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cowclip_merlin.cli import main


class Workspace:
    """A scratch folder with the prepared data, a finished run, and ways to spoil them."""

    def __init__(self, folder, data, run, log):
        self.path, self._data, self._run, self._log = folder, data, run, log

    def write(self, name, content=b""):
        return self.inside(self.path, name, content)

    def inside(self, folder, name, content):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
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
        self.edited_json(data / "dataset.json", checksums={})  # as in folders of earlier versions
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


@pytest.fixture(scope="session")
def trained(data, make_once):
    def make(folder):
        code = main(
            ["train", str(data), "--out", str(folder / "run"), "--model", "deepfm",
             "--batch-size", "256", "--mlp", "8", "--epochs", "1"]
        )  # fmt: skip
        assert code == 0

    return make_once("trained", make) / "run"


@pytest.fixture
def workspace(tmp_path, data, trained, log):
    return Workspace(tmp_path, data, trained, log)


@pytest.fixture
def refused(workspace, capsys):
    """Checks that a command ends in one clear line and exit code 2, nothing left behind."""

    def check(make, pattern):
        command = make(workspace)
        before = {path for path in workspace.path.rglob("*")}
        try:
            code = main(list(command))
        except SystemExit as end:  # what argparse itself finds
            code = end.code
        errors = capsys.readouterr().err
        lines = [line for line in errors.splitlines() if "error:" in line]
        assert code == 2, (lines, errors[-2000:])
        assert len(lines) == 1 and lines[0].startswith("cowclip"), lines
        assert re.search(pattern, lines[0]), lines[0]
        after = {path for path in workspace.path.rglob("*")}
        assert not after - before, f"left behind: {sorted(map(str, after - before))}"
        assert not before - after, f"deleted: {sorted(map(str, before - after))}"

    return check
