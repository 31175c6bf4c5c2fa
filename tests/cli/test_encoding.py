"""Names outside of ASCII, printed where only ASCII can be."""

import json
import os
import subprocess
import sys

import pytest

LOG = "y,Straße\n" + "0,ä\n1,ö\n" * 50
ONE_BY_ONE = """
import json
import sys
from cowclip_merlin.cli import main

for command in json.loads(sys.argv[1]):
    assert main(command) == 0, command
    print("-- done", flush=True)
"""


def cowclip(folder, *arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "cowclip_merlin", *arguments],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
    )


@pytest.mark.parametrize(
    "environment",
    [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "LANG": "C"}],
    ids=["ascii", "LANG=C"],
)
def test_a_name_that_cannot_be_printed_ends_nothing(tmp_path, environment):
    (tmp_path / "lög.csv").write_text(LOG, encoding="utf-8")
    prepare = ["prepare", "table", "lög.csv", "--out", "Dä", "--label", "y"]
    train = ["train", "Dä", "--out", "Rü", "--model", "deepfm", "--batch-size", "32", "--mlp", "8"]
    commands = [
        [*prepare, "--categorical", "Straße"],
        [*train, "--epochs", "1", "--diagnostics-every", "1", "--device", "cpu"],
        ["inspect", "Rü"],
    ]
    done = subprocess.run(
        [sys.executable, "-c", ONE_BY_ONE, json.dumps(commands)],
        cwd=tmp_path,
        env=os.environ | environment,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    prepared, _, shown, _ = done.stdout.split(b"-- done\n")
    assert b"100 rows in" in prepared
    assert (tmp_path / "Dä" / "dataset.json").is_file()
    escaped = b"Stra\\xdfe" if "PYTHONIOENCODING" in environment else "Straße".encode()
    assert escaped in shown


def test_a_file_whose_name_is_no_utf_8(tmp_path):
    name = os.fsdecode(b"l\xf6g.txt")
    strict = {"PYTHONIOENCODING": "utf-8:strict"}  # as under LANG=en_US.UTF-8
    done = cowclip(tmp_path, "generate", "--rows", "100", "--out", name, **strict)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / name).is_file()
