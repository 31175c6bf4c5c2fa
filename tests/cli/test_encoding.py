"""Names outside of ASCII, printed where only ASCII can be."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.system

LOG = "y,Straße\n" + "0,ä\n1,ö\n" * 50
ONE_BY_ONE = """
import json
import sys
from cowclip_merlin.cli import main

def run(commands):
    for command in commands:
        assert main(command) == 0, command
        print("-- done", flush=True)

first, second = json.loads(sys.argv[1])
run(first)
sys.stdout.reconfigure(encoding="ascii", errors="strict")  # as by PYTHONIOENCODING=ascii
sys.stderr.reconfigure(encoding="ascii", errors="backslashreplace")
run(second)
"""


def cowclip(folder, *arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "cowclip_merlin", *arguments],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
    )


def commands(data, run):
    prepare = ["prepare", "table", "lög.csv", "--out", data, "--label", "y"]
    train = ["train", data, "--out", run, "--model", "deepfm", "--batch-size", "32", "--mlp", "8"]
    return [
        [*prepare, "--categorical", "Straße"],
        [*train, "--epochs", "1", "--diagnostics-every", "1", "--device", "cpu"],
        ["inspect", run],
    ]


def test_a_name_that_cannot_be_printed_ends_nothing(tmp_path):
    """Under LANG=C, then where output is ASCII: in one process, as TensorFlow starts slowly."""
    (tmp_path / "lög.csv").write_text(LOG, encoding="utf-8")
    both = [commands("Dä", "Rü"), commands("Dö", "Rä")]
    done = subprocess.run(
        [sys.executable, "-c", ONE_BY_ONE, json.dumps(both)],
        cwd=tmp_path,
        env=os.environ | {"LC_ALL": "C", "LANG": "C"},
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    prepared, _, shown, again, _, escaped, _ = done.stdout.split(b"-- done\n")
    assert b"100 rows in" in prepared and b"100 rows in" in again
    assert "Straße".encode() in shown and b"Stra\\xdfe" in escaped
    for name in ("Dä", "Dö"):
        assert (tmp_path / name / "dataset.json").is_file()


def test_a_file_whose_name_is_no_utf_8(tmp_path):
    name = os.fsdecode(b"l\xf6g.txt")
    strict = {"PYTHONIOENCODING": "utf-8:strict"}  # as under LANG=en_US.UTF-8
    done = cowclip(tmp_path, "generate", "--rows", "100", "--out", name, **strict)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / name).is_file()
